"""Replay of any rule over the overflow thresholds of a run.

The unscaled gradients of a step do not depend on the loss scale; only their overflow does. So one
number per step is enough to replay any rule over a run: the step's **overflow threshold**, the
largest loss scale at which its gradients stay finite. ``found_inf = scale > threshold``: inf never
overflows, and 0 always does (a NaN batch).
"""

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Literal, cast

import numpy as np
import numpy.typing as npt

from ampsim.core.formats import FP16
from ampsim.core.machine import (
    Arithmetic,
    Carried,
    Machine,
    Rule,
    S,
    State,
    init,
    update,
)
from ampsim.core.policies import Observation
from ampsim.core.replay import engine
from ampsim.core.replay.engine import Engine
from ampsim.core.validation import TEXT, check_choice

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
CHANGE = np.dtype([("step", np.int64), ("scale", np.float64)])
_ROOM = 4096  # events per call of the loop


@dataclass(frozen=True, eq=False)
class ThresholdIndex:
    """A validated trace with the minimum of each block of steps, for replay of many rules."""

    thresholds: Floats  # (n,); the trace itself, no copy
    minima: Floats  # (ceil(n / block),)
    block: int  # steps, a power of two

    def __len__(self) -> int:
        return len(self.thresholds)


@dataclass(frozen=True, eq=False)
class ThresholdReplay(Generic[S]):
    """Result of a replay of one rule over a trace.

    Attributes:
        n: Number of steps.
        first: Loss scale of step 0.
        skipped: Skipped steps in ascending order, int64, of shape ``(skips,)``.
        scale_changes: Structured array with fields ``step`` (int64) and ``scale`` (float64), one
            entry per change of the loss scale. Update ``step`` makes the change; step ``step + 1``
            is the first to use the scale.
        state: State after the last update.
    """

    n: int
    first: float
    skipped: npt.NDArray[np.int64]
    scale_changes: npt.NDArray[np.void]
    state: S

    @property
    def skip_rate(self) -> float:
        """Number of skipped steps divided by the number of steps."""
        return len(self.skipped) / self.n

    @property
    def mean_log2_scale(self) -> float:
        """Mean of log2 of the loss scale after each update.

        Exact for powers of two; -inf if the scale was ever 0.
        """
        lengths, scales = self._runs()
        used = lengths > 0  # 0 * log2(0) is NaN
        with np.errstate(divide="ignore", invalid="ignore"):
            return float((lengths[used] * np.log2(scales[used])).sum()) / self.n

    def scales(self) -> npt.NDArray[np.float64]:
        """Return the scale after each update, of shape ``(n,)``, as `ampsim.replay` returns it."""
        lengths, scales = self._runs()
        return np.repeat(scales, lengths)

    def _runs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        edges = np.concatenate(([0], self.scale_changes["step"], [self.n]))
        return np.diff(edges), np.concatenate(
            ([self.first], self.scale_changes["scale"])
        )


def index_thresholds(thresholds: npt.ArrayLike, *, block: int = 64) -> ThresholdIndex:
    """Validate a trace and compute the minimum of each block of steps.

    Args:
        thresholds: Overflow thresholds of shape ``(n,)``, each at least 0 or inf. An array of
            float32 or float64 is not copied, nor is a memory map.
        block: Steps per block, a power of two.

    Returns:
        ThresholdIndex: The index, which `replay_thresholds` accepts.

    Raises:
        TypeError: If the dtype is neither float32 nor float64.
        ValueError: If the trace is empty, is not one-dimensional, or has a NaN or a negative
            number.
    """
    values = _floats(thresholds)
    integers = np.dtype(f"i{values.itemsize}")
    minima = np.empty(-(-len(values) // block), values.dtype)
    highest = int(np.array(np.inf, values.dtype).view(integers))
    count = engine.fastest().block_minima
    least, most = count(values.view(integers), block, minima.view(integers))
    if least < 0 or most > highest:
        for step in np.flatnonzero(~(values >= 0))[:1]:
            raise ValueError(
                f"thresholds[{step}]={float(values[step])!r}: expected a number >= 0, or inf if the step "
                "never overflows; pass 0.0 if it overflows at every scale"
            )
    return ThresholdIndex(values, minima, block)


def replay_thresholds(
    rule: Machine[S],
    thresholds: npt.ArrayLike | ThresholdIndex,
    *,
    method: Literal["auto", "events", "fold"] = "auto",
    state: S | None = None,
    top: float = FP16.max_finite,
) -> ThresholdReplay[S]:
    """Replay a rule over the overflow thresholds of a run.

    The result equals a fold of ``update(rule, state, state.scale > threshold)``.

    Args:
        rule: A `Rule` or a policy.
        thresholds: Overflow thresholds of shape ``(steps,)``, or the result of `index_thresholds`.
        method: "events" jumps between skips and growths, for rules without quirks. "fold" replays
            any rule or policy step by step. "auto" selects the method.
        state: State before the first step; default ``init(rule)``.
        top: Largest number of the gradients' format. A policy receives ``top / threshold`` as the
            largest gradient.

    Returns:
        ThresholdReplay: Skips, changes of the scale, and the last state.

    Raises:
        TypeError: If the dtype is neither float32 nor float64.
        ValueError: If `thresholds` is invalid (see `index_thresholds`), or "events" does not
            support `rule` or `state`.
        Exception: What the rule's framework raises, with a note that names the update.
    """
    check_choice("method", method, ("auto", "events", "fold"))
    index = (
        thresholds
        if isinstance(thresholds, ThresholdIndex)
        else index_thresholds(thresholds)
    )
    start = init(rule) if state is None else state
    obstacle = _obstacle(rule, start)
    if method == "events" and obstacle:
        raise ValueError(f"method='events' with {obstacle}; pass method='fold'")
    if method == "fold" or obstacle:
        return _fold(rule, index, start, top)
    # Without an obstacle, the rule is a Rule.
    done = run_events(cast("Rule", rule), index, cast("State", start), engine.fastest())
    return cast("ThresholdReplay[S]", done)


def _floats(thresholds: npt.ArrayLike) -> Floats:
    if isinstance(thresholds, TEXT):
        kind = type(thresholds).__name__
        raise TypeError(
            f"thresholds={thresholds!r} has type {kind}: expected one number per step; "
            "to replay an overflow sequence, call replay"
        )
    values = np.asarray(thresholds)
    if not isinstance(thresholds, np.ndarray) and values.dtype.kind in "iu":
        values = values.astype(np.float64)  # a list of integers
    if values.ndim != 1:
        raise ValueError(
            f"thresholds of shape {values.shape}: expected one number per step; pass thresholds.ravel()"
        )
    if not len(values):
        raise ValueError("thresholds of 0 steps: expected at least one step")
    if values.dtype not in (np.float32, np.float64):  # native byte order
        raise TypeError(
            f"thresholds of {values.dtype}: expected float32 or float64; pass thresholds.astype('float64')"
        )
    return np.ascontiguousarray(values)


# A check takes a tenth of a replay; an unhashable rule was never checked.
_check_rule = lru_cache(Rule.check)


def _obstacle(rule: object, state: Carried) -> str | None:
    """Return why "events" does not support this run, and what it expects; None if it does."""
    if type(rule) is not Rule:
        return f"a {type(rule).__name__}: expected an ampsim Rule"
    if rule.quirks:
        return f"quirks={rule.quirks!r}: expected a rule without quirks"
    if type(rule.arithmetic) is not Arithmetic:
        return f"arithmetic={rule.arithmetic!r}: expected an ampsim.core.machine.Arithmetic"
    try:
        _check_rule(rule)
    except (TypeError, ValueError) as error:
        return f"an unchecked rule ({error}): expected a rule that Rule accepts"
    if len(state.pending) > rule.delay:
        return f"pending={state.pending!r}: expected at most delay={rule.delay} scales"
    return None


def run_events(
    rule: Rule, index: ThresholdIndex, state: State, loop: Engine
) -> ThresholdReplay[State]:
    """Replay a rule without quirks from event to event; see `replay_thresholds`."""
    c = engine.constants(rule)
    bits = index.block.bit_length() - 1
    waiting = _waiting(state, c.delay)
    trackers = int(state.growth_tracker), int(state.overflow_tracker)
    carry = engine.Carry(0, float(state.scale), float(state.newest), *trackers, 0, 0, 0)
    skipped = []
    changes = []
    while carry.step < len(index):
        room = np.empty(_ROOM, np.int64)
        log = np.empty(_ROOM + len(waiting), CHANGE)
        log[: len(waiting)] = waiting
        carry = carry._replace(skips=0, logged=len(waiting), applied=0)
        carry = loop.run(
            index.thresholds,
            index.minima,
            bits,
            c,
            carry,
            room,
            log["step"],
            log["scale"],
        )
        skipped.append(room[: carry.skips])
        changes.append(log[: carry.applied])
        waiting = log[carry.applied : carry.logged]
    pending = _pending(
        carry, waiting, min(len(state.pending) + len(index), rule.delay), c.delay
    )
    after = State(
        float(carry.scale),
        int(carry.growth_tracker),
        int(carry.overflows),
        pending,
        state.memory,
    )
    return ThresholdReplay(
        len(index), state.scale, np.concatenate(skipped), np.concatenate(changes), after
    )


def _waiting(state: State, delay: int) -> npt.NDArray[np.void]:
    """Return pending scales as changes; the last change is made by update delay - 1."""
    first = delay - len(state.pending)
    pairs = enumerate(itertools.pairwise((state.scale, *state.pending)), first)
    return np.array(
        [(step, new) for step, (old, new) in pairs if engine.differ(old, new)], CHANGE
    )


def _pending(
    carry: engine.Carry, waiting: npt.NDArray[np.void], many: int, delay: int
) -> tuple[float, ...]:
    """Return the last `many` scales computed, the inverse of `_waiting`."""
    if not many:
        return ()
    steps = carry.step + delay - many + np.arange(many)
    known = np.concatenate(([carry.scale], waiting["scale"]))
    return tuple(known[np.searchsorted(waiting["step"], steps, side="right")].tolist())


def _fold(
    rule: Machine[S], index: ThresholdIndex, state: S, top: float
) -> ThresholdReplay[S]:
    skipped: list[int] = []
    changes: list[tuple[int, float]] = []
    first = state.scale
    kind = cast("type", type(rule))
    for step, threshold in enumerate(map(float, index.thresholds)):
        before = state.scale
        found_inf = state.scale > threshold
        if found_inf:
            skipped.append(step)
        amax = top / threshold if threshold else math.inf
        seen = found_inf if kind is Rule else Observation(found_inf, amax)
        try:
            state = update(rule, state, seen)
        except Exception as error:
            error.add_note(f"raised by update {step} of {len(index)} (counted from 0)")
            raise
        if engine.differ(before, state.scale):
            changes.append((step, state.scale))
    return ThresholdReplay(
        len(index), first, np.array(skipped, np.int64), np.array(changes, CHANGE), state
    )
