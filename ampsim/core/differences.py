"""Differences between two scalers: fields of their rules, and the shortest separating overflow
sequence.
"""

import inspect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields

from ampsim.core.formats import far_power
from ampsim.core.machine import Quirk, Rule, State, init, update

Node = tuple[State, State]
MOST = 20_000
"""Maximum number of state pairs of a search; takes about a second."""


def in_words(a: Rule, b: Rule) -> Iterator[tuple[str, str, str]]:
    """Yield (field, value of a, value of b) for each difference between two rules."""
    has_hysteresis = max(a.hysteresis, b.hysteresis) > 1
    for x, y in ((a, b), (a.arithmetic, b.arithmetic)):
        for each in fields(x):
            mine = getattr(x, each.name)
            other = getattr(y, each.name)
            is_idle = each.name == "hysteresis_reset" and not has_hysteresis
            if (
                mine != other
                and each.name not in ("arithmetic", "quirks")
                and not is_idle
            ):
                yield each.name, _words(mine), _words(other)
    for quirk in dict.fromkeys((*a.quirks, *b.quirks)):
        if (quirk in a.quirks) != (quirk in b.quirks):
            yield (
                _quirk(quirk),
                *(("yes", "no") if quirk in a.quirks else ("no", "yes")),
            )


def _words(value: object) -> str:
    if isinstance(value, frozenset):
        return " or ".join(sorted(value)) or "nothing"
    if isinstance(value, float):
        return far_power(value, 10) or f"{value:.10g}"
    return str(value).lower()


def _quirk(quirk: Quirk) -> str:
    summary = (inspect.getdoc(quirk) or "").split("\n\n")[0].replace("\n", " ")
    numbers = ", ".join(f"{name}={value}" for name, value in vars(quirk).items())
    return f"{summary} {numbers}".rstrip()


@dataclass(frozen=True)
class Search:
    """Result of a search for a separating overflow sequence.

    Attributes:
        history: Shortest separating overflow sequence, one flag per update; None if none was found.
        length: All sequences up to this length were covered, in updates.
        exhausted: Whether all reachable states were visited, so that no sequence of any length
            separates the rules.
    """

    history: tuple[bool, ...] | None
    length: int
    exhausted: bool = False


def shortest_separation(
    a: Rule, b: Rule, longest: int = 2000, most: int = MOST
) -> Search:
    """Find the shortest overflow sequence that separates two rules.

    A sequence separates two rules if their scales differ after it, or if only one of them raises.
    The search is breadth first over pairs of states and tries finite steps before overflows, so the
    result is deterministic.

    Args:
        a: First rule.
        b: Second rule.
        longest: Maximum length of a sequence in updates.
        most: Maximum number of state pairs to visit.

    Returns:
        Search: The sequence if one was found, and how far the search went.
    """
    if a == b:
        return Search(None, 0, exhausted=True)
    start = init(a), init(b)
    if start[0].scale != start[1].scale:
        return Search((), 0)
    came: dict[Node, tuple[Node, bool] | None] = {start: None}
    level = [start]
    for length in itertools.count():
        if not level or length == longest or len(came) > most:
            return Search(None, length, exhausted=not level)
        reached: list[Node] = []
        for node in level:
            for flag in (False, True):
                after = _after(a, node[0], flag), _after(b, node[1], flag)
                x, y = after
                if (x and x.scale) != (y and y.scale):
                    return Search((*_history(came, node), flag), length + 1)
                if x is not None and y is not None and (x, y) not in came:
                    came[x, y] = node, flag
                    reached.append((x, y))
        level = reached
    raise AssertionError  # unreachable: the loop above returns


def _after(rule: Rule, state: State, flag: bool) -> State | None:
    """Return the next state; None if the rule raises."""
    try:
        return update(rule, state, flag)
    except Exception:  # the framework's own, of any type
        return None


def _history(
    came: dict[Node, tuple[Node, bool] | None], node: Node
) -> tuple[bool, ...]:
    flags: list[bool] = []
    while (step := came[node]) is not None:
        node, flag = step
        flags.append(flag)
    return tuple(reversed(flags))
