"""The dynamic loss scaler as a pure state machine: the reference.

The same transition stands in four other forms, each held equal to this one by tests: event by event
(`replay.engine`, tests/core/test_thresholds.py), in integers on JAX's arrays (`ampsim.jax.machine`,
tests/jax/test_loss_scale.py), as torch's kernel (`ampsim.torch`, tests/torch/test_lockstep.py) and for many runs at
once in numpy (`experiments.theorems`, tests/experiments/test_theory.py).

Theory of operation
-------------------
fp16 holds magnitudes from 2^-24 to 65504. Gradients are often smaller, so the loss is multiplied by a
*loss scale* S before the backward pass and the gradients are divided by S before the optimizer sees
them. If S is too large some gradient overflows to inf or NaN; the optimizer step is then skipped. Nobody
knows the right S in advance and it moves during training, so the scaler probes for it:

* An update with ``found_inf`` (the gradients of this iteration were not all finite) is an **overflow**.
  The streak of clean steps is broken, ``growth_tracker`` restarts, and the scale **backs off**:
  S <- S * backoff_factor. Some scalers are patient and back off only at the ``hysteresis``-th overflow.
* An update without is a **clean step**. ``growth_tracker`` counts it. When the count reaches
  ``growth_interval`` the scale **grows**, S <- S * growth_factor, and the count restarts.

``found_inf`` is one bit about all gradients of an iteration, and a join: it is true if any part of them, be it a
micro-batch's, an optimizer's or a rank's, was not finite (`join`). However an iteration is split, the machine sees the
same: parts may be joined in any order, in any grouping, more than once. A sum is no join; two overflows are one.

A growth that would leave the number format is refused (or saturates, or becomes inf for ever: that is
part of an `Arithmetic`). ``min_scale`` stops a backoff, ``max_scale`` stops a growth. With ``delay`` = k a
scale comes into force k updates after it was computed, as in pipelines whose optimizer runs behind.

Everything else that frameworks do differently is either a number in a `Rule`, the rounding in an
`Arithmetic`, or a `Quirk`: a small piece that wraps one step of the plain machine. ``dialects`` is the list.

`Rule` is what is chosen and never changes during a run. `State` is what is carried, all of it: a
checkpoint that holds a State resumes the run to the last bit. This module does not know who is asking;
it sees neither tensors nor threads nor optimizers.
"""

import ctypes
import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping
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
    check_pieces,
    check_scales,
)

Advance = Callable[["Rule", State, bool], State]


class Machine(Protocol[S]):
    """A `Rule`, or a policy of `ampsim.core.policies`: pure functions over a state of its own."""

    @property
    def delay(self) -> int:
        """Updates between computing a scale and using it."""

    def init(self) -> S:
        """Return the state before the first update."""

    def update(self, state: S, found_inf: object, *, synchronous: bool = False) -> S:
        """Return the state after an iteration; see the function `update`."""

    def override(self, state: S, new_scale: float, *, synchronous: bool = False) -> S:
        """Return the state after the scale was set by hand; see the function `override`."""


def round_to_float32(x: float) -> float:
    """Return the float32 nearest to a double (ties to even); inf beyond the largest float32."""
    return ctypes.c_float(x).value


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """A way to hold, multiply and round a scale.

    The default is torch's kernel: ``float32(float64(S) * float64(factor))``, one product in double, one
    rounding. A quotient or product of two float32 numbers that is computed in double and then rounded to
    float32 equals the float32 operation (double rounding is innocuous: 53 >= 2 * 24 + 2), so double
    arithmetic below serves every float32 scaler; what differs is whether the *factor* was rounded first.
    """

    dtype: Literal["float32", "float64"] = "float32"
    """Format that holds the scale."""
    round_factors: bool = False
    """Round a factor to `dtype` before it is used (JAX, TensorFlow, Paddle, Megatron)."""
    backoff: Literal["multiply", "divide", "reciprocal"] = "multiply"
    """S * backoff_factor; S / growth_factor; S * round(1 / growth_factor), what XLA makes of S / constant."""
    flush_subnormals: bool = False
    """A result that is subnormal in `dtype` becomes 0 (XLA and TensorFlow on CPU)."""
    keeps_finite: bool = True
    """A growth to inf keeps the old scale; if False the scale becomes inf, and inf * 0.5 is inf for ever."""

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, ("float32", "float64"))
        check_choice("backoff", self.backoff, ("multiply", "divide", "reciprocal"))

    @property
    def least(self) -> float:
        """The magnitude below which a result becomes 0; 0 if none does."""
        if not self.flush_subnormals:
            return 0.0
        return 2.0**-126 if self.dtype == "float32" else 2.0**-1022

    def round(self, x: float) -> float:
        """Return `x` in the format that holds the scale."""
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
            lowered = self._result(scale * self.round(1.0 / self._factor(rule.growth_factor)))
        return lowered if rule.min_scale is None else max(lowered, self.round(rule.min_scale))


class Quirk:
    """One step of the plain machine, wrapped: what a single framework does and nobody else.

    The same pair of pure functions as the machine. `advance` is the next layer in; a quirk may change what
    goes in, replace what comes out, leave `advance` out, or raise. What it must remember it keeps in
    ``State.memory`` under its own names.
    """

    def init(self, rule: "Rule", state: State) -> State:
        """Return the first state, given the plain machine's."""
        return state

    def update(self, advance: Advance, rule: "Rule", state: State, found_inf: bool) -> State:
        """Return the next state; the default adds nothing."""
        return advance(rule, state, found_inf)


@dataclass(frozen=True)
class Rule:
    """The constants of a loss scaler, chosen once. The defaults are torch's.

    Raises ValueError or TypeError, with the value, what was expected and the cure, for a rule that no
    run could want. Torch itself accepts more; `Rule.unchecked` does too.

    Attributes:
        init_scale: the first scale: what a loss is multiplied by, a pure number.
        growth_factor: what a growth multiplies the scale by, at least 1.
        backoff_factor: what a backoff multiplies it by, in (0, 1].
        growth_interval: clean steps in a row before a growth.
        min_scale: a backoff ends here, even one that began below.
        max_scale: a growth ends here, even one that began above.
        hysteresis: overflows that a backoff takes.
        hysteresis_reset: after which of these the next backoff takes `hysteresis` overflows again.
        delay: updates between computing a scale and using it.
        growth_test: how the tracker is compared with the interval; they differ once it is past.
        arithmetic: the format that holds the scale, and how a product is rounded.
        quirks: outermost last.
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    _: dataclasses.KW_ONLY
    min_scale: float | None = None
    max_scale: float | None = None
    hysteresis: int = 1
    hysteresis_reset: frozenset[Literal["clean", "growth", "backoff"]] = frozenset({"growth"})
    delay: int = 0
    growth_test: Literal["==", ">="] = "=="
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    quirks: tuple[Quirk, ...] = ()

    def __post_init__(self) -> None:
        self.check()
        # Whatever collection was passed, a rule is hashable.
        object.__setattr__(self, "hysteresis_reset", frozenset(self.hysteresis_reset))
        object.__setattr__(self, "quirks", tuple(self.quirks))

    def check(self) -> None:
        """Raise ValueError or TypeError for a rule that no run could want; only `unchecked` makes one."""
        check_arithmetic(self.arithmetic)
        held = self.arithmetic
        check_scales(self.init_scale, self.min_scale, self.max_scale, held.round, held.dtype)
        check_factors(self.growth_factor, self.backoff_factor, divides=held.backoff != "multiply")
        as_int("growth_interval", self.growth_interval, 1, "to never grow pass growth_factor=1.0")
        as_int("hysteresis", self.hysteresis, 1, "to back off at every overflow pass hysteresis=1")
        as_int("delay", self.delay, 0, "to use each scale at once pass delay=0")
        check_choice("growth_test", self.growth_test, ("==", ">="))
        check_pieces(self.quirks, self.hysteresis_reset)

    def replace(self, **changes: object) -> Self:
        """Return this rule with some fields changed; it is checked again."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def init(self) -> State:
        """Return the state before the first update."""
        state = State(self.arithmetic.round(self.init_scale))
        for quirk in self.quirks:
            state = quirk.init(self, state)
        return state

    def update(self, state: State, found_inf: object, *, synchronous: bool = False) -> State:
        """Return the state after an iteration; see the function `update`."""
        step: Advance = reduce(
            lambda inner, quirk: partial(quirk.update, inner), self.quirks, advance
        )
        before = State(state.newest, state.growth_tracker, state.overflow_tracker, (), state.memory)
        return _publish(self, state, step(self, before, bool(found_inf)), synchronous)

    def override(self, state: State, new_scale: float, *, synchronous: bool = False) -> State:
        """Return the state after the scale was set by hand; see the function `override`."""
        after = dataclasses.replace(state, scale=self.arithmetic.round(new_scale))
        return _publish(self, state, after, synchronous)

    @classmethod
    def unchecked(cls, **fields: object) -> Self:
        """Return a rule without any check, for reproducing scalers that check nothing."""
        rule = object.__new__(cls)
        for f in dataclasses.fields(cls):
            default = (
                f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
            )
            object.__setattr__(rule, f.name, fields.pop(f.name, default))
        if fields:
            raise TypeError(
                f"unknown fields {sorted(fields)}: expected some of {[*cls.__dataclass_fields__]}"
            )
        return rule


def advance(rule: Rule, state: State, found_inf: bool) -> State:
    """Take one step of the plain machine, without quirks and without delay."""
    scale, growth_tracker, overflow_tracker = (
        state.scale,
        state.growth_tracker,
        state.overflow_tracker,
    )
    if found_inf:
        growth_tracker = 0
        if overflow_tracker + 1 < rule.hysteresis:
            overflow_tracker += 1
        else:
            scale = rule.arithmetic.back_off(scale, rule)
            overflow_tracker = 0 if "backoff" in rule.hysteresis_reset else overflow_tracker
    else:
        overflow_tracker = 0 if "clean" in rule.hysteresis_reset else overflow_tracker
        growth_tracker += 1
        if _COMPARE[rule.growth_test](growth_tracker, rule.growth_interval):
            scale = rule.arithmetic.grow(scale, rule)
            growth_tracker = 0
            overflow_tracker = 0 if "growth" in rule.hysteresis_reset else overflow_tracker
    return State(scale, growth_tracker, overflow_tracker, state.pending, state.memory)


_COMPARE: Mapping[str, Callable[[int, int], bool]] = {"==": operator.eq, ">=": operator.ge}


def join(parts: Iterable[object]) -> bool:
    """Return the ``found_inf`` of an iteration whose parts found these, each taken by its truth: NaN is an overflow."""
    return any(map(bool, parts))


def init(rule: Machine[S]) -> S:
    """Return the state before the first update of a `Rule` or a policy."""
    if not hasattr(rule, "init"):
        raise _no_rule(rule)
    return rule.init()


def update(rule: Machine[S], state: S, found_inf: object, *, synchronous: bool = False) -> S:
    """Return the state after an iteration whose gradients were (``found_inf``) or were not all finite.

    Pure. A `synchronous` update brings the newest scale into force at once and drops the ones before it,
    whatever the rule's delay. ``found_inf`` is taken by its truth, so NaN is an overflow, as in torch; policies
    read more of an `Observation`. Raises only what the dialect's framework raises: DeepSpeed, fairseq and MindSpore
    give up.
    """
    if not hasattr(rule, "update"):
        raise _no_rule(rule)
    return rule.update(state, found_inf, synchronous=synchronous)


def override(rule: Machine[S], state: S, new_scale: float, *, synchronous: bool = False) -> S:
    """Return the state after ``update(new_scale)``: the scale is set by hand, and the trackers keep their counts.

    With a delay the new scale waits its turn like a computed one (RoundPipe's behaviour). Any number is taken,
    NaN and 0 too, as torch takes it, and bounds are not applied; only the format rounds it.
    """
    if not hasattr(rule, "override"):
        raise _no_rule(rule)
    return rule.override(state, new_scale, synchronous=synchronous)


def _no_rule(rule: object) -> TypeError:
    return TypeError(
        f"{rule!r} is no rule: expected a Rule, or a policy with init, update and override"
    )


def _publish(rule: Rule, before: State, after: State, synchronous: bool) -> State:
    """Queue a newly computed scale behind those that wait, and bring the oldest into force."""
    depth = 0 if synchronous else rule.delay
    queue = (before.scale, *before.pending, after.scale)[
        -(depth + 1) :
    ]  # in force first, newest last
    return State(queue[0], after.growth_tracker, after.overflow_tracker, queue[1:], after.memory)
