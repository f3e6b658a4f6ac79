"""Quirks: behavior of single frameworks, each as a wrapper of one step of the state machine.

Each quirk names the framework whose source it was read from; `dialects` lists the rules that use
it.
"""

import dataclasses
import math
from dataclasses import dataclass

from ampsim.core.machine import Advance, Arithmetic, Quirk, Rule, State


@dataclass(frozen=True)
class StreakStartsAt(Quirk):
    """DeepSpeed (from 0.17.1): the first finite step after an overflow does not count towards a
    growth.

    The first growth of a run, and the first growth after an overflow, need growth_interval + 1
    finite steps. Further growths without an overflow in between need growth_interval.
    """

    start: int = -1

    def init(self, rule: Rule, state: State) -> State:
        return dataclasses.replace(state, growth_tracker=self.start)

    def update(
        self, advance: Advance, rule: Rule, state: State, found_inf: bool
    ) -> State:
        after = advance(rule, state, found_inf)
        return (
            dataclasses.replace(after, growth_tracker=self.start)
            if found_inf
            else after
        )


@dataclass(frozen=True)
class RaiseAtMin(Quirk):
    """DeepSpeed (``raise_error_at_min_scale``): a backoff from exactly min_scale raises.

    The overflow that reaches min_scale does not raise; the next backoff does.
    """

    message = "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."

    def update(
        self, advance: Advance, rule: Rule, state: State, found_inf: bool
    ) -> State:
        backs_off = found_inf and state.overflow_tracker + 1 >= rule.hysteresis
        if backs_off and state.scale == rule.min_scale:
            raise Exception(self.message)
        return advance(rule, state, found_inf)


@dataclass(frozen=True)
class Tolerance(Quirk):
    """fairseq: back off when overflows / updates since the last rescale reach `fraction`.

    A backoff resets both counts. A growth resets the count of updates and keeps the overflows.
    """

    fraction: float

    def update(
        self, advance: Advance, rule: Rule, state: State, found_inf: bool
    ) -> State:
        updates = state.recall("updates_since_rescale") + 1
        overflows = state.recall("overflows_since_rescale") + found_inf
        tolerated = found_inf and overflows / updates < self.fraction
        after = advance(rule, state, found_inf)
        if tolerated:
            after = dataclasses.replace(after, scale=state.scale)
        rescaled = (found_inf and not tolerated) or (
            not found_inf and after.growth_tracker == 0
        )
        return after.remember(
            updates_since_rescale=0 if rescaled else updates,
            overflows_since_rescale=0 if rescaled and found_inf else overflows,
        )


@dataclass(frozen=True)
class RaiseBelow(Quirk):
    """fairseq (``min_loss_scale``): an overflow after which the scale is at most `limit` raises."""

    limit: float

    def update(
        self, advance: Advance, rule: Rule, state: State, found_inf: bool
    ) -> State:
        after = advance(rule, state, found_inf)
        if found_inf and after.scale <= self.limit:
            raise FloatingPointError(
                f"Minimum loss scale reached ({self.limit}). Your loss is probably exploding. "
                "Try lowering the learning rate, using gradient clipping or increasing the batch size."
            )
        return after


@dataclass(frozen=True)
class HoldAtBounds(Quirk):
    """BMTrain: bounds block changes instead of clamping the scale.

    An overflow at or below `low` changes nothing, not even the growth tracker. A finite step at or
    above `high` only adds to the growth tracker. So one growth or backoff can move the scale past a
    bound.
    """

    low: float
    high: float

    def update(
        self, advance: Advance, rule: Rule, state: State, found_inf: bool
    ) -> State:
        if found_inf and not state.scale > self.low:
            return state
        if not found_inf and not state.scale < self.high:
            return dataclasses.replace(state, growth_tracker=state.growth_tracker + 1)
        return advance(rule, state, found_inf)


@dataclass(frozen=True)
class ClipEveryUpdate(Quirk):
    """mpx: each update clamps the scale to [low, high], whether the scale changed or not."""

    low: float
    high: float

    def update(
        self, advance: Advance, rule: Rule, state: State, found_inf: bool
    ) -> State:
        after = advance(rule, state, found_inf)
        low = rule.arithmetic.round(self.low)
        high = rule.arithmetic.round(self.high)
        return dataclasses.replace(after, scale=min(max(after.scale, low), high))


@dataclass(frozen=True)
class RampUntilOverflow(Quirk):
    """Chainer: until the first overflow of the run, the scale grows by `factor`, not growth_factor."""

    factor: float

    def update(
        self, advance: Advance, rule: Rule, state: State, found_inf: bool
    ) -> State:
        overflowed = found_inf or bool(state.recall("overflow_seen"))
        step_rule = (
            rule if overflowed else dataclasses.replace(rule, growth_factor=self.factor)
        )
        after = advance(step_rule, state, found_inf)
        return after.remember(overflow_seen=1) if overflowed else after


@dataclass(frozen=True)
class FirstUpdateInDouble(Quirk):
    """flax outside ``jit``: the first update is computed in double, as the scale is a Python float.

    The result is rounded to float32 once. Later updates are computed in float32.
    """

    def update(
        self, advance: Advance, rule: Rule, state: State, found_inf: bool
    ) -> State:
        if state.recall("started"):
            return advance(rule, state, found_inf)
        first = dataclasses.replace(rule, arithmetic=Arithmetic(flush_subnormals=True))
        held = rule.arithmetic.round(rule.init_scale)
        # The first update has the double itself, unless the scale was set by hand.
        start = float(rule.init_scale) if state.scale == held else state.scale
        before = dataclasses.replace(state, scale=start)
        after = advance(first, before, found_inf)
        return dataclasses.replace(
            after, scale=rule.arithmetic.round(after.scale)
        ).remember(started=1)


@dataclass(frozen=True)
class RaiseAfterConsecutive(Quirk):
    """MindSpore's manager: more than `overflows` consecutive overflows raise."""

    overflows: int = 1000

    def update(
        self, advance: Advance, rule: Rule, state: State, found_inf: bool
    ) -> State:
        after = advance(rule, state, found_inf)
        in_a_row = state.recall("overflows_in_a_row") + 1 if found_inf else 0
        if in_a_row > self.overflows:
            raise RuntimeError(
                "Dynamic loss scale Continuous overflow ",
                int(in_a_row),
                " times, has exceeded maximum threshold.",
            )
        return after.remember(overflows_in_a_row=in_a_row)


@dataclass(frozen=True)
class StepsInLog2(Quirk):
    """guided-diffusion updates log2 of the scale: a finite step adds `growth`, an overflow
    subtracts 1.

    The logarithm is a double; the loss is multiplied by the float32 nearest to 2^log2.
    """

    growth: float

    def update(
        self, advance: Advance, rule: Rule, state: State, found_inf: bool
    ) -> State:
        log2 = state.recall("log2", math.log2(rule.init_scale))
        if state.scale != self._scale(rule, log2):  # it was set by hand
            log2 = math.log2(state.scale) if state.scale > 0 else -math.inf
        log2 += -1.0 if found_inf else self.growth
        after = advance(rule, state, found_inf)
        return dataclasses.replace(after, scale=self._scale(rule, log2)).remember(
            log2=log2
        )

    @staticmethod
    def _scale(rule: Rule, log2: float) -> float:
        return rule.arithmetic.round(2.0**log2) if log2 < 1024 else math.inf
