"""All that a loss scaler may have done between the lines of a log.

A log shows some scales and some overflows, not each step. So the followed thing is a set of states
of the state machine: a bit set of growth trackers for each (log2 of the scale, overflow tracker).
Between two rows a set goes through every step with an overflow and without one, as far as the log
allows both. A row keeps the states that agree with it. If none is left, the row is a *break*: what
the log shows is nothing that the rule can do. Following goes on from any state with the scale that
the row shows.

Growth, backoff, bounds, and hysteresis are those of `Rule.update`, which is called on one state of
each kind. It is assumed that an update depends on the tracker only by whether it reaches the
interval.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from math import log2
from typing import Any

from ampsim.core.machine import Rule
from ampsim.core.state import State

Node = tuple[float, int]  # log2 of the scale, overflow tracker
ENDED: Node = (-math.inf, 0)
States = dict[
    Node, int
]  # node -> bit set of (growth tracker + 1); DeepSpeed's starts at -1


class Automaton:
    """One step of a rule on all states of a set."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._due = 1 << rule.growth_interval  # the bit of a tracker at interval - 1
        self._after = cache(self._after_once)

    def anywhere(self, bits: float) -> States:
        """Return all states with a scale."""
        trackers = (self._due << 1) - 1
        return {
            (bits, overflows): trackers for overflows in range(self.rule.hysteresis)
        }

    def finite(self, states: States) -> States:
        """Return the states after a finite step."""
        after: States = {}
        for node, trackers in states.items():
            if waiting := trackers & ~self._due:
                merge(after, self._after(node, 0, found_inf=False)[0], waiting << 1)
            if trackers & self._due:
                grown, tracker = self._after(
                    node, self.rule.growth_interval - 1, found_inf=False
                )
                merge(after, grown, 1 << (tracker + 1))
        return after

    def overflow(self, states: States) -> States:
        """Return the states after an overflow."""
        after: States = {}
        for node in states:
            lowered, tracker = self._after(node, 0, found_inf=True)
            merge(after, lowered, 1 << (tracker + 1))
        return after

    def between(
        self,
        states: States,
        steps: int,
        overflows: Sequence["Row"] | None,
        target: float | None,
        *,
        counts_skips: bool,
    ) -> States:
        """Return the states after some steps of which the log shows the overflows; None: it does
        not.

        Args:
            states: States before the steps.
            steps: Number of steps that the log counts.
            overflows: Overflows in these steps, in order.
            target: log2 of the scale after the steps; None if it is not shown.
            counts_skips: Whether `steps` has the skipped ones.
        """
        if overflows is None:
            return matching(
                self._with_any(states, steps, target, counts_skips=counts_skips), target
            )
        # after[k] are the states after the first k overflows
        total = steps + (0 if counts_skips else len(overflows))
        after: list[States] = [states, *({} for _ in overflows)]
        for _ in range(total):
            for k in range(len(overflows), 0, -1):
                shown = matching(after[k - 1], overflows[k - 1].before)
                lowered = matching(self.overflow(shown), overflows[k - 1].after)
                after[k] = united(self.finite(after[k]), lowered)
            after[0] = self.finite(after[0])
        return matching(after[-1], target)

    def _with_any(
        self, states: States, steps: int, target: float | None, *, counts_skips: bool
    ) -> States:
        """Return the states after some steps of which each may have overflowed."""
        if not counts_skips:
            states = self._after_any_overflows(states, self._lowest(target, steps))
        for left in reversed(range(steps)):
            lowest = self._lowest(target, left)
            finite = self.finite(states)
            if counts_skips:
                states = in_reach(united(finite, self.overflow(states)), lowest)
            else:
                states = self._after_any_overflows(finite, lowest)
        return states

    def _lowest(self, target: float | None, left: int) -> float:
        """Return the lowest scale from which a scale can be reached in the steps that are left."""
        if target is None:
            return -math.inf
        return target - math.ceil(left / self.rule.growth_interval)

    def _after_any_overflows(self, states: States, lowest: float) -> States:
        """Return the states after any number of overflows, down to a scale."""
        while (
            more := in_reach(united(states, self.overflow(states)), lowest)
        ) != states:
            states = more
        return states

    def _after_once(
        self, node: Node, tracker: int, *, found_inf: bool
    ) -> tuple[Node, int]:
        bits, overflows = node
        try:
            after = self.rule.update(State(2.0**bits, tracker, overflows), found_inf)
        except Exception:  # a framework's own class: its run ends here
            return ENDED, 0
        if after.scale == 0:
            return ENDED, 0
        return (log2(after.scale), after.overflow_tracker), after.growth_tracker


def matching(states: States, bits: float | None) -> States:
    """Return the states with a scale; all of them if the scale is not shown."""
    if bits is None:
        return states
    return {node: trackers for node, trackers in states.items() if node[0] == bits}


def in_reach(states: States, lowest: float) -> States:
    """Return the states from a scale on."""
    return {node: trackers for node, trackers in states.items() if node[0] >= lowest}


def united(states: States, others: States) -> States:
    """Return the states of both sets."""
    return {
        node: states.get(node, 0) | others.get(node, 0)
        for node in states.keys() | others.keys()
    }


def merge(states: States, node: Node, trackers: int) -> None:
    states[node] = states.get(node, 0) | trackers


@dataclass(frozen=True)
class Row:
    """A scale after a step, an overflow, or a step alone; None for what the log does not show."""

    step: int | None
    after: float | None = None
    before: float | None = None
    is_overflow: bool = False
    skipped: int | None = None


def unpacked(rows: Sequence[Sequence[Any]], steps: int) -> Iterator[Row]:
    """Yield the first rows of a run.

    Args:
        rows: Rows in the form that `inputs/cuda_runs.md` explains.
        steps: Steps after the first step of the log, at most.
    """
    start = next((row[0] for row in rows if row[0] is not None), 0)
    for row in rows:
        if len(row) == 3:
            step, before, after = row
            # A program that numbers its overflows counts the finished steps.
            yield from () if step is None else (Row(step),)
            yield Row(step, after, before, is_overflow=True)
            yield from () if step is None else (Row(step + 1),)
            continue
        step, bits, every, count, *skipped = (
            row if len(row) > 1 else (row[0], None, 0, 1)
        )
        for i in range(count):
            at = None if step is None else step + i * every
            if at is not None and at > start + steps:
                return
            yield Row(at, bits, skipped=skipped[0] if skipped else None)


@dataclass
class Followed:
    """How a rule fares on a log.

    Attributes:
        moves: Scales that differ from the scale shown before.
        growths: Those that are above it.
        breaks: (step, kind) of each row that the rule cannot produce.
        restarts: Rows at a step that is not after the step before; following starts again there.
    """

    moves: int = 0
    growths: int = 0
    breaks: list[tuple[int, str]] = field(default_factory=list)
    restarts: int = 0


def follow(rule: Rule, rows: Sequence[Row], *, counts_skips: bool) -> Followed:
    """Follow a rule through the rows of a log.

    Args:
        rule: Rule with factors 2 and 1/2.
        rows: Rows of the log; each but an overflow has a step.
        counts_skips: Whether the step of the log counts skipped steps.

    Returns:
        Followed: What agrees and what does not.
    """
    automaton, result = Automaton(rule), Followed()
    shows_overflows = any(row.is_overflow for row in rows)
    # A count of skips is of one distance between rows. An excerpt may leave rows out.
    distance = shortest(rows) if any(row.skipped for row in rows) else None
    states: States = {}
    last: float | None = None
    now: int | None = None
    overflows: list[Row] = []
    for row in rows:
        if row.is_overflow:
            overflows.append(row)
            continue
        if row.step is None or (row.step == now and row.after is None):
            continue
        shown = [each.after for each in (*overflows, row) if each.after is not None]
        if now is None or row.step <= now:
            result.restarts += now is not None
            states = {}
        else:
            known: Sequence[Row] | None = overflows if shows_overflows else None
            if row.step - now == distance:
                known = [Row(None)] * (row.skipped or 0)
            states = automaton.between(
                states, row.step - now, known, row.after, counts_skips=counts_skips
            )
            if last is not None:
                changes = [b - a for a, b in pairwise([last, *shown]) if a != b]
                result.moves += len(changes)
                result.growths += sum(change > 0 for change in changes)
                if not states:
                    result.breaks.append((row.step, kind_of_break(last, shown)))
        last = shown[-1] if shown else last
        if not states and last is not None:
            states = automaton.anywhere(last)
        now, overflows = row.step, []
    return result


def shortest(rows: Sequence[Row]) -> int | None:
    """Return the shortest distance between two rows."""
    steps = [row.step for row in rows if row.step is not None]
    return min((b - a for a, b in pairwise(steps) if b > a), default=None)


def kind_of_break(last: float, shown: Sequence[float]) -> str:
    """Return what a break looks like, from the scale before it and the scales at it."""
    move = shown[-1] - last if shown else 0.0
    if move > 0:
        return "grew early"
    return "fell too far" if move < 0 else "did not grow"
