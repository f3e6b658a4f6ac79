"""The dynamic loss scaler as a pure state machine: the reference.

Three other implementations exist, and tests compare each with this one: event by event
(`replay.engine`, tests/core/test_thresholds.py), in integers on JAX arrays (`ampsim.jax.machine`,
tests/jax/test_loss_scale.py), and as torch's kernel (`ampsim.torch`, tests/torch/test_lockstep.py).

Theory of operation
-------------------
fp16 holds magnitudes from 2^-24 to 65504. Gradients are often smaller, so the loss is multiplied by a
*loss scale* S before the backward pass and the gradients are divided by S before the optimizer sees
them. If S is too large, some gradient overflows to inf or NaN, and the optimizer step is skipped. The best S
is not known in advance and changes during training, so the scaler searches for it:

* An update with ``found_inf`` (the gradients of this iteration were not all finite) is an
  **overflow**. ``growth_tracker`` restarts, and the scale **backs off**: S <- S * backoff_factor.
  With ``hysteresis``, some scalers back off only at the ``hysteresis``-th overflow.
* An update without ``found_inf`` is a **finite step**. ``growth_tracker`` counts it. When the count
  reaches ``growth_interval``, the scale **grows**, S <- S * growth_factor, and the count restarts.

``found_inf`` is one bit about all gradients of an iteration. It is the logical or over the parts of
an iteration: micro-batches, optimizers, and ranks. Parts may be joined in any order, in any
grouping, and more than once. A sum would not do: two overflows in one iteration count as one.

A growth beyond the number format keeps the old scale, saturates, or becomes inf indefinitely,
depending on the `Arithmetic`. ``min_scale`` limits a backoff, ``max_scale`` limits a growth. With
``delay`` = k, a scale is first used k updates after it was computed, as in pipelines whose
optimizer runs behind.

Everything else that frameworks do differently is a number in a `Rule`, the rounding in an
`Arithmetic`, or a `Quirk` that wraps one step of the plain state machine. ``dialects`` is the list.

A `Rule` is chosen once and does not change during a run. A `State` is all that goes from update to
update: a checkpoint with a State resumes the run to the last bit. This module has no tensors,
threads, or optimizers.
"""

import ctypes
import dataclasses
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Literal, Protocol, Self

from ampsim.core.state import Carried as Carried
from ampsim.core.state import S as S
from ampsim.core.state import State as State
from ampsim.core.validation import (
    as_int,
    check_arithmetic,
    check_choice,
    check_factors,
    check_hysteresis_reset,
    check_quirks,
    check_scales,
)

Advance = Callable[["Rule", State, bool], State]
# The constants of a rule that torch's scaler can get, set, and save.
SETTABLE = ("growth_factor", "backoff_factor", "growth_interval")


class Machine(Protocol[S]):
    """Interface of a `Rule` and of the policies in `ampsim.core.policies`."""

    @property
    def delay(self) -> int:
        """Number of updates between computing a scale and using it."""

    def init(self) -> S:
        """Return the state before the first update."""

    def update(self, state: S, found_inf: object, *, synchronous: bool = False) -> S:
        """Return the state after an iteration; see the function `update`."""

    def override(self, state: S, new_scale: float, *, synchronous: bool = False) -> S:
        """Return the state after the scale was set by hand; see the function `override`."""


def round_to_float32(x: float) -> float:
    """Round to float32 (ties to even); inf beyond the largest float32."""
    return ctypes.c_float(x).value


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """How a scale is stored, multiplied, and rounded.

    The default is torch's kernel: ``float32(float64(S) * float64(factor))``, one product in double,
    one rounding. A quotient or product of two float32 numbers that is computed in double and then
    rounded to float32 equals the float32 operation (double rounding is innocuous: 53 >= 2 * 24 +
    2), so double arithmetic below serves every float32 scaler; what differs is whether the *factor*
    was rounded first.
    """

    dtype: Literal["float32", "float64"] = "float32"
    """Format of the scale."""
    round_factors: bool = False
    """Round a factor to `dtype` before it is used (JAX, TensorFlow, Paddle, Megatron)."""
    backoff: Literal["multiply", "divide", "reciprocal"] = "multiply"
    """S * backoff_factor; S / growth_factor; or S * round(1 / growth_factor), as XLA compiles S / constant."""
    flush_subnormals: bool = False
    """A result that is subnormal in `dtype` becomes 0 (XLA and TensorFlow on CPU)."""
    keeps_finite: bool = True
    """Whether a growth to inf keeps the old scale; if False, the scale becomes inf and stays inf."""

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, ("float32", "float64"))
        check_choice("backoff", self.backoff, ("multiply", "divide", "reciprocal"))

    @property
    def least(self) -> float:
        """Magnitude below which a result is flushed to 0; 0 if subnormals are kept."""
        if not self.flush_subnormals:
            return 0.0
        return 2.0**-126 if self.dtype == "float32" else 2.0**-1022

    def round(self, x: float) -> float:
        """Round `x` to the format of the scale."""
        return round_to_float32(x) if self.dtype == "float32" else float(x)

    def _result(self, x: float) -> float:
        x = self.round(x)
        return 0.0 if abs(x) < self.least else x

    def _factor(self, x: float) -> float:
        return self.round(x) if self.round_factors else x

    def grow(self, scale: float, rule: "Rule") -> float:
        """Return the scale after a growth: at most ``max_scale``, and finite if `keeps_finite`."""
        grown = self._result(scale * self._factor(rule.growth_factor))
        if rule.max_scale is not None:
            grown = min(grown, self.round(rule.max_scale))
        return scale if self.keeps_finite and not math.isfinite(grown) else grown

    def back_off(self, scale: float, rule: "Rule") -> float:
        """Return the scale after a backoff: at least ``min_scale``."""
        if self.backoff == "multiply":
            lowered = self._result(scale * self._factor(rule.backoff_factor))
        elif self.backoff == "divide":
            lowered = self._result(scale / self._factor(rule.growth_factor))
        else:
            lowered = self._result(
                scale * self.round(1.0 / self._factor(rule.growth_factor))
            )
        return (
            lowered
            if rule.min_scale is None
            else max(lowered, self.round(rule.min_scale))
        )


class Quirk:
    """A wrapper of one step of the state machine, for behavior of a single framework.

    It has the same two pure functions as the state machine. `advance` is the inner step. A quirk
    may change the input, replace the output, not call `advance`, or raise. It stores its own values
    in ``State.memory``.
    """

    def init(self, rule: "Rule", state: State) -> State:
        """Return the first state, given that of the plain state machine."""
        return state

    def update(
        self, advance: Advance, rule: "Rule", state: State, found_inf: bool
    ) -> State:
        """Return the next state; the default adds nothing."""
        return advance(rule, state, found_inf)


@dataclass(frozen=True)
class Rule:
    """Constants of a loss scaler. The defaults are torch's.

    >>> from ampsim import Rule, init, update
    >>> rule = Rule(init_scale=1024.0, min_scale=1.0)
    >>> update(rule, init(rule), found_inf=True).scale
    512.0

    Attributes:
        init_scale: Initial loss scale, a positive factor.
        growth_factor: Factor of a growth; at least 1. 1.0 disables growth.
        backoff_factor: Factor of a backoff, in (0, 1]. 1.0 disables backoff.
        growth_interval: Number of consecutive finite steps before a growth; at least 1.
        min_scale: Lower bound that a backoff applies; None for no bound.
        max_scale: Upper bound that a growth applies; None for no bound.
        hysteresis: Number of overflows needed to trigger a backoff; at least 1.
        hysteresis_reset: Events that reset the count of overflows: 'clean' (a finite step),
            'growth', 'backoff'.
        delay: Number of updates between computing a scale and using it; at least 0.
        growth_test: How ``growth_tracker`` is compared with ``growth_interval``. The two differ
            only if the tracker is above the interval.
        arithmetic: Format and rounding of the scale.
        quirks: Wrappers of a step, innermost first.

    Raises:
        TypeError: If a field has an invalid type.
        ValueError: If a field is out of range. torch accepts more values; so does `Rule.unchecked`.
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    _: dataclasses.KW_ONLY
    min_scale: float | None = None
    max_scale: float | None = None
    hysteresis: int = 1
    hysteresis_reset: frozenset[Literal["clean", "growth", "backoff"]] = frozenset(
        {"growth"}
    )
    delay: int = 0
    growth_test: Literal["==", ">="] = "=="
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    quirks: tuple[Quirk, ...] = ()

    def __post_init__(self) -> None:
        self.check()
        # A rule is hashable, whatever collection was passed.
        object.__setattr__(self, "hysteresis_reset", frozenset(self.hysteresis_reset))
        object.__setattr__(self, "quirks", tuple(self.quirks))

    def check(self) -> None:
        """Validate the fields; needed only after `unchecked`.

        Raises:
            TypeError: If a field has an invalid type.
            ValueError: If a field is out of range.
        """
        check_arithmetic(self.arithmetic)
        held = self.arithmetic
        check_scales(
            self.init_scale, self.min_scale, self.max_scale, held.round, held.dtype
        )
        check_factors(
            self.growth_factor, self.backoff_factor, divides=held.backoff != "multiply"
        )
        as_int(
            "growth_interval",
            self.growth_interval,
            1,
            "to never grow pass growth_factor=1.0",
        )
        as_int(
            "hysteresis",
            self.hysteresis,
            1,
            "to back off at every overflow pass hysteresis=1",
        )
        as_int("delay", self.delay, 0, "to use each scale at once pass delay=0")
        check_choice("growth_test", self.growth_test, ("==", ">="))
        check_quirks(self.quirks)
        check_hysteresis_reset(self.hysteresis_reset)

    def replace(self, **changes: object) -> Self:
        """Return a copy with some fields changed; the copy is checked.

        Args:
            changes: New values by field name.

        Returns:
            Rule: The changed copy.

        Raises:
            TypeError: If a field does not exist or has an invalid type.
            ValueError: If a field is out of range.
        """
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def init(self) -> State:
        """Return the state before the first update.

        >>> Rule(init_scale=1024.0).init().scale
        1024.0
        """
        state = State(self.arithmetic.round(self.init_scale))
        for quirk in self.quirks:
            state = quirk.init(self, state)
        return state

    def update(
        self, state: State, found_inf: object, *, synchronous: bool = False
    ) -> State:
        """Return the state after an iteration; see the function `update`."""
        step: Advance = reduce(
            lambda inner, quirk: partial(quirk.update, inner), self.quirks, advance
        )
        before = State(
            state.newest, state.growth_tracker, state.overflow_tracker, (), state.memory
        )
        return _publish(self, state, step(self, before, bool(found_inf)), synchronous)

    def override(
        self, state: State, new_scale: float, *, synchronous: bool = False
    ) -> State:
        """Return the state after the scale was set by hand; see the function `override`."""
        after = dataclasses.replace(state, scale=self.arithmetic.round(new_scale))
        return _publish(self, state, after, synchronous)

    @classmethod
    def unchecked(cls, **fields: object) -> Self:
        """Return a rule without validation.

        Use it to reproduce scalers that validate nothing.

        Args:
            fields: Values by field name; other fields keep their defaults.

        Returns:
            Rule: The rule as given.

        Raises:
            TypeError: If a field does not exist.
        """
        rule = object.__new__(cls)
        for f in dataclasses.fields(cls):
            default = (
                f.default_factory()
                if f.default_factory is not dataclasses.MISSING
                else f.default
            )
            object.__setattr__(rule, f.name, fields.pop(f.name, default))
        if fields:
            raise TypeError(
                f"unknown fields {sorted(fields)}: expected some of {[*cls.__dataclass_fields__]}"
            )
        return rule


def advance(rule: Rule, state: State, found_inf: bool) -> State:
    """Take one step of the state machine, without quirks and delay."""
    scale = state.scale
    growth_tracker = state.growth_tracker
    overflow_tracker = state.overflow_tracker
    events = set()
    if not found_inf:
        events.add("clean")
        growth_tracker += 1
        if _COMPARE[rule.growth_test](growth_tracker, rule.growth_interval):
            events.add("growth")
            scale = rule.arithmetic.grow(scale, rule)
            growth_tracker = 0
    else:
        growth_tracker = 0
        if overflow_tracker + 1 < rule.hysteresis:
            overflow_tracker += 1
        else:
            events.add("backoff")
            scale = rule.arithmetic.back_off(scale, rule)
    if not events.isdisjoint(rule.hysteresis_reset):
        overflow_tracker = 0
    return State(scale, growth_tracker, overflow_tracker, state.pending, state.memory)


_COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    ">=": operator.ge,
}


def init(rule: Machine[S]) -> S:
    """Return the state before the first update.

    Args:
        rule: A `Rule` or a policy.

    Returns:
        The first state, with ``scale`` equal to ``init_scale``.

    Raises:
        TypeError: If `rule` is neither.
    """
    _check(rule)
    return rule.init()


def update(
    rule: Machine[S], state: S, found_inf: object, *, synchronous: bool = False
) -> S:
    """Return the state after one iteration. A pure function.

    >>> from ampsim import Rule, init, update
    >>> rule = Rule(init_scale=1024.0, growth_interval=2)
    >>> state = update(rule, init(rule), found_inf=False)
    >>> state.scale, state.growth_tracker, update(rule, state, found_inf=False).scale
    (1024.0, 1, 2048.0)

    Args:
        rule: A `Rule` or a policy.
        state: State before the iteration.
        found_inf: Whether any gradient was not finite, used by its truth value: NaN is an overflow,
            as in torch. A policy may need an `Observation`.
        synchronous: Whether the newest scale is used at once, whatever the delay; older pending
            scales are dropped. Needed only for rules with a delay, such as RoundPipe's with
            ``update(is_async=False)``.

    Returns:
        The state after the iteration.

    Raises:
        TypeError: If `rule` is neither a `Rule` nor a policy, or `state` is no state.
        Exception: What the framework of the dialect raises; DeepSpeed, fairseq, and MindSpore end a
            run this way.
    """
    _check(rule, state)
    return rule.update(state, found_inf, synchronous=synchronous)


def override(
    rule: Machine[S], state: S, new_scale: float, *, synchronous: bool = False
) -> S:
    """Return the state after the scale was set by hand; trackers are kept.

    Args:
        rule: A `Rule` or a policy.
        state: State before the call.
        new_scale: The scale to set. Any number is accepted, as in torch, also NaN and 0. It is
            rounded, and bounds are not applied.
        synchronous: Whether the scale is used at once. If False, it waits for ``delay`` updates, as
            in RoundPipe.

    Returns:
        The state after the call.

    Raises:
        TypeError: If `rule` is neither a `Rule` nor a policy, or `state` is no state.
    """
    _check(rule, state)
    return rule.override(state, new_scale, synchronous=synchronous)


def _check(rule: object, *states: object) -> None:
    if not hasattr(rule, "override"):
        raise TypeError(
            f"{rule!r} is no rule: expected a Rule or a policy; "
            "for the name of a dialect pass dialects.get(name)"
        )
    for state in states:
        if not hasattr(state, "scale"):
            raise TypeError(
                f"state={state!r} has type {type(state).__name__}: expected a State; pass init(rule)"
            )


def _publish(rule: Rule, before: State, after: State, synchronous: bool) -> State:
    """Append a new scale to the queue, and make the oldest one the current loss scale."""
    depth = 0 if synchronous else rule.delay
    # Current first, newest last.
    queue = (before.scale, *before.pending, after.scale)[-(depth + 1) :]
    return State(
        queue[0], after.growth_tracker, after.overflow_tracker, queue[1:], after.memory
    )
