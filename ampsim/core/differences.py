"""Where two scalers differ: in words, and by the shortest history that tells them apart."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ampsim.core.formats import far_power
from ampsim.core.machine import Quirk, Rule, State, init, update

Node = tuple[State, State]
MOST = 20_000
"""Pairs of states that a search meets at most; about a second."""


def _number(value: object) -> str:
    """Return a number, as a power of two where it is a large or small one."""
    return far_power(value, 10) or f"{value:.10g}" if isinstance(value, float) else str(value)


# A field in words, and what its values are called where they are not numbers.
_RULE = {
    "init_scale": "the first scale",
    "growth_interval": "clean steps to a growth",
    "growth_factor": "a growth multiplies by",
    "backoff_factor": "a backoff multiplies by",
    "min_scale": "a backoff ends at",
    "max_scale": "a growth ends at",
    "hysteresis": "overflows that a backoff takes",
    "hysteresis_reset": "they are counted anew after",
    "delay": "updates until a scale is in force",
    "growth_test": "the count of clean steps must",
}
_ARITHMETIC = {
    "dtype": "the scale is held in",
    "round_factors": "a factor is used",
    "backoff": "a backoff is computed as",
    "flush_subnormals": "a subnormal scale",
    "keeps_finite": "a growth to infinity",
}
_VALUES: dict[tuple[str, object], str] = {
    ("min_scale", None): "no floor",
    ("max_scale", None): "no max_scale",
    ("growth_test", "=="): "equal it",
    ("growth_test", ">="): "reach it",
    ("round_factors", True): "rounded to that",
    ("round_factors", False): "as a double",
    ("backoff", "multiply"): "scale * backoff factor",
    ("backoff", "divide"): "scale / growth factor",
    ("backoff", "reciprocal"): "scale * (1 / growth factor)",
    ("flush_subnormals", True): "becomes 0",
    ("flush_subnormals", False): "is kept",
    ("keeps_finite", True): "is not taken",
    ("keeps_finite", False): "is taken, for ever",
}


_EVENTS = {"backoff": "a backoff", "clean": "a clean step", "growth": "a growth"}


def _words(name: str, value: object) -> str:
    if isinstance(value, frozenset):
        return " or ".join(_EVENTS[event] for event in sorted(value)) or "nothing"
    return _VALUES.get((name, value)) or _number(value)


def in_words(a: Rule, b: Rule) -> Iterator[tuple[str, str, str]]:
    """Yield what differs between two rules, and each one's side of it; nothing where they are equal."""
    patient = max(a.hysteresis, b.hysteresis) > 1
    for x, y, fields in ((a, b, _RULE), (a.arithmetic, b.arithmetic, _ARITHMETIC)):
        for name, told in fields.items():
            mine, other = getattr(x, name), getattr(y, name)
            if mine != other and (patient or name != "hysteresis_reset"):
                yield told, _words(name, mine), _words(name, other)
    for quirk in dict.fromkeys((*a.quirks, *b.quirks)):
        if (quirk in a.quirks) != (quirk in b.quirks):
            yield _quirk(quirk), *(("yes", "no") if quirk in a.quirks else ("no", "yes"))


def _quirk(quirk: Quirk) -> str:
    said = (type(quirk).__doc__ or "").splitlines()[0]
    return f"{said} {', '.join(f'{name}={value}' for name, value in vars(quirk).items())}".rstrip()


@dataclass(frozen=True)
class Search:
    """A search's end.

    Attributes:
        history: the shortest that separates the two; None if none was found.
        length: all histories up to this length were tried, or led to states that others had led to.
        exhausted: there are no more states: no history of any length separates them.
    """

    history: tuple[bool, ...] | None
    length: int
    exhausted: bool = False


def shortest_separation(a: Rule, b: Rule, longest: int = 2000, most: int = MOST) -> Search:
    """Return the shortest history after which two rules have other scales, or one gives up and the other does not.

    Breadth first over pairs of states, clean steps before overflows, so the answer is always the same one. The search
    ends at histories of `longest` updates, or with `most` pairs of states.
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
    raise AssertionError  # the loop has no end


def _after(rule: Rule, state: State, flag: bool) -> State | None:
    """Return the next state, None where the rule gives up."""
    try:
        return update(rule, state, flag)
    except Exception:  # the framework's own, of any type
        return None


def _history(came: dict[Node, tuple[Node, bool] | None], node: Node) -> tuple[bool, ...]:
    flags: list[bool] = []
    while (step := came[node]) is not None:
        node, flag = step
        flags.append(flag)
    return tuple(reversed(flags))
