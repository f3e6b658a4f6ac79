"""Policies: machines outside the backoff family, each a pair of pure functions over a state of its own.

A policy knows its own numbers and what it is told of one iteration, and neither tensors nor who asks.

>>> from ampsim import replay
>>> from ampsim.core.policies import Headroom, Observation
>>> history = [Observation(False, amax=1.0), Observation(False, amax=3.0), Observation(True, amax=float("inf"))]
>>> replay(Headroom(init_scale=2.0**15, margin=1), history).tolist()  # 1 bit between amax and fp16's largest
[16384.0, 8192.0, 4096.0]

Theory of operation
-------------------
A `Policy` is a frozen dataclass of numbers and a pair of pure functions: ``start(xp)`` makes what it remembers at
first, ``decide(xp, ...)`` the next scale and what it remembers then. Both are written without a branch on an array
namespace, so the same lines run on numpy scalars in float32 and are traced by JAX. The queue below makes a machine
of them: `machine.init`, `update` and `override` take a policy wherever they take a `Rule`. An update learns an
`Observation` of one iteration: whether the gradients overflowed and, if the policy wants it, how large they were.

With ``delay`` = k a decision takes effect k updates after it was made, as in a pipeline whose optimizer runs
behind. The state holds the queue: ``scale`` is in force, that is, the next update reports on an iteration that
used it, and ``pending`` are the scales of the k iterations after that one. So ``scale`` means what it means with
``Rule(delay=k)``, and replay reads it. A pipeline of depth k begins iterations k ahead of the reports: what it
makes of j updates is used by iteration j + k, whose scale is ``newest``. Both views give iteration i the same
scale, and a policy sees both ends of the queue, so it knows which scale a report is about.

The scale stays finite and within [``min_scale``, ``max_scale``]; `LogMax` with ``faithful=True`` is the exception.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ampsim.core.formats import FP16
from ampsim.core.machine import round_to_float32
from ampsim.core.validation import as_float, as_int, check_factors

RELOAD = "load what state_dict() returned"
Memory = tuple[float, ...]  # of one policy, a NamedTuple; under JAX its numbers are arrays


@dataclass(frozen=True)
class Observation:
    """The sight of one iteration's gradients. True if they overflowed, so that every `Rule` takes it.

    Attributes:
        found_inf: whether any gradient was inf or NaN.
        amax: largest magnitude of the gradients once *unscaled*; inf or NaN where it is not known for an overflow.
        saturated: share of the elements at the largest number of their format, 0 to 1.
    """

    found_inf: bool
    amax: float | None = None
    saturated: float | None = None

    def __bool__(self) -> bool:
        return bool(self.found_inf)


class PolicyState(NamedTuple):
    """A policy's state: float32 and int32 scalars, as Python's numbers in core, as arrays in JAX.

    Attributes:
        scale: in force: of the iteration that the next update reports on.
        pending: of the k iterations after it, oldest first.
        memory: what the policy remembers, a NamedTuple of its own.
    """

    scale: float
    pending: tuple[float, ...]
    memory: Memory

    @property
    def newest(self) -> float:
        """The scale decided last; of the iteration that a pipeline of depth k begins next."""
        return self.pending[-1] if self.pending else self.scale

    @property
    def growth_tracker(self) -> int:
        """Clean steps counted towards the next growth; 0 for policies that count none."""
        return getattr(self.memory, "growth_tracker", 0)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The queue, the bounds and the checks that all policies share. A policy defines `decide` and `start`.

    Raises ValueError or TypeError, with the value, what was expected and the cure.

    Attributes:
        init_scale: the first scale.
        min_scale: no scale is below; of 2^-126, the smallest normal float32, the reciprocal is finite.
        max_scale: no scale is above.
        delay: updates between a decision and its first use; a pipeline's depth.
        needs: what `decide` reads of an `Observation` beside ``found_inf``.
    """

    init_scale: float = 2.0**16
    min_scale: float = 2.0**-126
    max_scale: float = 2.0**127
    delay: int = 0

    needs: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        low, init, high = (
            held(name, getattr(self, name)) for name in ("min_scale", "init_scale", "max_scale")
        )
        if not low <= init <= high:
            raise ValueError(
                f"init_scale={self.init_scale!r}: expected within [min_scale, max_scale] = "
                f"[{self.min_scale!r}, {self.max_scale!r}]; widen them or start inside"
            )
        as_int("delay", self.delay, 0, "to use each scale at once pass delay=0")

    def start(self, xp: ModuleType) -> Memory:
        """Return the first memory."""
        return ()

    def decide(
        self, xp: ModuleType, used: float, newest: float, memory: Memory, seen: Observation
    ) -> tuple[float, Memory]:
        """Return the next scale to be used, unbounded, and the next memory.

        Args:
            xp: numpy or jax.numpy, of which all numbers are scalars.
            used: the scale of the iteration that is reported.
            newest: the scale decided last.
            memory: what `start` or the last `decide` returned.
            seen: with the fields that `needs` names; booleans and float32 scalars.
        """
        raise NotImplementedError

    def overridden(self, xp: ModuleType, memory: Memory, scale: float) -> Memory:
        """Return the memory when all scales to come are `scale`; the default keeps it, as torch keeps its tracker."""
        return memory

    def settled(self, newest: float, memory: Memory) -> float:
        """Return the scale to go on with when the queue is emptied."""
        return newest

    def restored(self, name: str, like: float, number: object) -> float:
        """Return a number of a saved state, of the type of `like`; refuse one that no run leaves."""
        if isinstance(like, int):
            if (count := as_int(name, number, 0, RELOAD)) > 2**31 - 2:  # one more is still an int32
                raise ValueError(f"{name}={number!r}: expected at most 2**31 - 2; {RELOAD}")
            return count
        value = round_to_float32(as_float(name, number))
        scale = name in ("scale", "base") or name.startswith("pending")
        if not 0 <= value < math.inf or (scale and value == 0):
            raise ValueError(
                f"{name}={number!r}: expected a finite number {'above' if scale else 'from'} 0; {RELOAD}"
            )
        return value

    # The machine, on any array namespace.

    def init_in(self, xp: ModuleType) -> PolicyState:
        """Return the state before the first update."""
        first = xp.float32(self.init_scale)
        return PolicyState(first, (first,) * self.delay, self.start(xp))

    def update_in(self, xp: ModuleType, state: PolicyState, seen: Observation) -> PolicyState:
        """Return the state after one iteration was reported.

        Raises:
            ValueError: `seen` lacks what this policy needs.
        """
        for name in self.needs:
            if getattr(seen, name) is None:
                raise ValueError(
                    f"{name}=None: {type(self).__name__} expected {name} with every update; pass "
                    f"Observation(found_inf, {name}=...), in torch use a scaler made with this policy"
                )
        decided, memory = self.decide(xp, state.scale, state.newest, state.memory, seen)
        return _queued(state, self.bounded(xp, decided), memory)

    def override_in(self, xp: ModuleType, state: PolicyState, new_scale: object) -> PolicyState:
        """Return the state after the scale was set by hand; it waits its turn like a decided one."""
        scale = xp.float32(new_scale)
        return _queued(state, scale, self.overridden(xp, state.memory, scale))

    def synchronized(self, xp: ModuleType, state: PolicyState) -> PolicyState:
        """Return the state after a synchronous update: every iteration from the next one on uses the settled scale."""
        scale = self.settled(state.newest, state.memory)
        return PolicyState(scale, (scale,) * self.delay, self.overridden(xp, state.memory, scale))

    def bounded(self, xp: ModuleType, scale: float) -> float:
        """Return `scale` within the bounds; NaN passes, as in TensorFlow."""
        low, high = (xp.float32(bound) for bound in (self.min_scale, self.max_scale))
        return xp.minimum(xp.maximum(scale, low), high)  # type: ignore[no-any-return]

    # The machine, on Python's numbers: what `machine.init`, `update` and `override` call.

    def init(self) -> PolicyState:
        """Return the state before the first update."""
        return _map(_as_python, self.init_in(np))

    def update(
        self, state: PolicyState, found_inf: object, *, synchronous: bool = False
    ) -> PolicyState:
        """Return the state after an iteration, of which an `Observation` or only its `found_inf` is given."""
        seen = found_inf if isinstance(found_inf, Observation) else Observation(bool(found_inf))
        numbers = (
            None if value is None else np.float32(value) for value in (seen.amax, seen.saturated)
        )
        as_scalars: list[Any] = [np.bool_(bool(seen)), *numbers]
        with np.errstate(
            all="ignore"
        ):  # inf and NaN are looked for, and branches not taken are computed too
            after = self.update_in(np, _map(_as_scalar, state), Observation(*as_scalars))
            after = self.synchronized(np, after) if synchronous else after
        return _map(_as_python, after)

    def override(
        self, state: PolicyState, new_scale: float, *, synchronous: bool = False
    ) -> PolicyState:
        """Return the state after the scale was set by hand; see `machine.override`."""
        with np.errstate(all="ignore"):
            after = self.override_in(np, _map(_as_scalar, state), new_scale)
            after = self.synchronized(np, after) if synchronous else after
        return _map(_as_python, after)


@dataclass(frozen=True, kw_only=True)
class Growing(Policy):
    """A policy that grows by a factor after an interval of clean steps and backs off by another, as torch's machine.

    Attributes:
        growth_factor: what a growth multiplies the scale by, at least 1.
        backoff_factor: what a backoff multiplies it by, in (0, 1].
        growth_interval: clean steps before a growth.
    """

    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factors(self.growth_factor, self.backoff_factor)
        as_int("growth_interval", self.growth_interval, 1, "to never grow pass growth_factor=1.0")


class DeduplicatedState(NamedTuple):
    """The memory of `Deduplicated` and `Ratio`."""

    growth_tracker: int  # clean steps at the newest scale since the last growth or overflow


@dataclass(frozen=True, kw_only=True)
class Deduplicated(Growing):
    """A policy that backs off once for all the overflows of one scale.

    With delay k one scale that was too large makes k + 1 iterations overflow, and a `Rule` backs off at each. Here
    an overflow says only that the scale *it used* was too large: new = min(newest, used * backoff_factor). A clean
    step counts only at the newest scale. On a stationary threshold it skips (k+1)/(G+2k+1) of the steps.
    With delay 0 this is torch's machine.
    """

    def start(self, xp: ModuleType) -> DeduplicatedState:
        return DeduplicatedState(xp.int32(0))

    def decide(
        self, xp: ModuleType, used: float, newest: float, memory: Memory, seen: Observation
    ) -> tuple[float, DeduplicatedState]:
        (clean,), bad = memory, seen.found_inf
        growth_tracker = xp.where(bad, 0, clean + (used == newest))
        grows = growth_tracker >= self.growth_interval
        kept = xp.where(grows, newest * self.growth_factor, newest)
        scale = xp.where(bad, xp.minimum(newest, used * self.backoff_factor), kept)
        return scale, DeduplicatedState(xp.where(grows, 0, growth_tracker))


@dataclass(frozen=True, kw_only=True)
class Ratio(Deduplicated):
    """A policy that backs off when too many elements saturate: the rule of FP8-LM (arXiv:2310.18313, section 2.1).

    Halves when more than 0.001 % of the elements stand at the format's maximum, doubles after 1000 steps below. The
    paper spreads the doubling over those steps: ``growth_factor=2 ** (1 / 1000), growth_interval=1``; in one
    step the scale stays a power of two. The released code (Azure/MS-AMP@0f4c06f, `msamp/nn/distributed.py`)
    has a constant 1/sqrt(ranks) in its place. A non-finite gradient counts as saturated.

    Attributes:
        threshold: share of saturated elements from which on the scale is too large.
        top: for whoever counts: the largest number of the gradients' format; 448 for E4M3.
    """

    growth_interval: int = 1000
    threshold: float = 1e-5
    top: float = FP16.max_finite

    needs: ClassVar[tuple[str, ...]] = ("saturated",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= as_float("threshold", self.threshold) < 1:
            raise ValueError(
                f"threshold={self.threshold!r}: expected a share in [0, 1); FP8-LM's is 1e-5"
            )
        if not 0 < as_float("top", self.top) < math.inf:
            raise ValueError(
                f"top={self.top!r}: expected a positive finite number; fp16's is {FP16.max_finite}"
            )

    def decide(
        self, xp: ModuleType, used: float, newest: float, memory: Memory, seen: Observation
    ) -> tuple[float, DeduplicatedState]:
        assert seen.saturated is not None  # noqa: S101 - it is needed, so it was looked for
        too_large = Observation(seen.found_inf | (seen.saturated > self.threshold))
        return super().decide(xp, used, newest, memory, too_large)


class FloorScheduleState(NamedTuple):
    """The memory of `FloorSchedule`."""

    growth_tracker: int  # clean steps since the last growth or overflow
    step: int  # updates so far, up to the last milestone


@dataclass(frozen=True, kw_only=True)
class FloorSchedule(Growing):
    """A policy that is torch's machine with a floor that rises at milestones.

    ``milestones=((40_000, 8192.0), (150_000, 32768.0))`` lifts the scale to at least 8192 with the 40 000th update:
    Mellempudi et al. 2019 (arXiv:1905.12334) so kept fp8 training from settling too low. Each backs off by itself
    with a delay, as with ``Rule(delay=k)``, of which this is the whole for no milestones.

    Attributes:
        milestones: (updates, floor), rising.
    """

    milestones: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(
            self, "milestones", tuple((step, floor) for step, floor in self.milestones)
        )
        steps = [
            as_int("milestone", step, 1, "to start with a floor pass min_scale")
            for step, _ in self.milestones
        ]
        floors = [held("floor", floor) for _, floor in self.milestones]
        if steps != sorted(set(steps)):
            raise ValueError(f"milestones={self.milestones!r}: expected rising steps; sort them")
        if floors != sorted(floors) or not all(
            self.min_scale <= floor <= self.max_scale for floor in floors
        ):
            raise ValueError(
                f"milestones={self.milestones!r}: expected floors that do not fall, within [min_scale, max_scale] = "
                f"[{self.min_scale!r}, {self.max_scale!r}]; widen the bounds or sort the floors"
            )

    def start(self, xp: ModuleType) -> FloorScheduleState:
        return FloorScheduleState(xp.int32(0), xp.int32(0))

    def decide(
        self, xp: ModuleType, used: float, newest: float, memory: Memory, seen: Observation
    ) -> tuple[float, FloorScheduleState]:
        clean, done = memory
        growth_tracker = xp.where(seen.found_inf, 0, clean + 1)
        grows = growth_tracker >= self.growth_interval
        factor = xp.where(
            seen.found_inf,
            xp.float32(self.backoff_factor),
            xp.where(grows, xp.float32(self.growth_factor), xp.float32(1)),
        )
        scale = newest * factor
        last = self.milestones[-1][0] if self.milestones else 0
        step = xp.minimum(done + 1, last)
        for at, floor in self.milestones:
            scale = xp.where(step >= at, xp.maximum(scale, xp.float32(floor)), scale)
        return scale, FloorScheduleState(xp.where(grows, 0, growth_tracker), step)


class HeadroomState(NamedTuple):
    """The memory of `Headroom`."""

    growth_tracker: int  # steps of the interval that runs; a fall or an overflow begins another
    peak: float  # largest unscaled gradient in them


@dataclass(frozen=True, kw_only=True)
class Headroom(Policy):
    """A policy that keeps `margin` bits between the largest gradient and the format's top.

    It never overflows to find out. The scale is a power of two. It falls at once to the largest with
    amax * S <= top / 2^margin. At the end of each `interval` of clean steps it doubles if the largest gradient in them
    leaves the margin at the doubled scale too. An overflow, whose size is not known, halves the scale that was used.

    Attributes:
        margin: bits.
        interval: clean steps.
        top: largest number of the gradients' format.
    """

    max_scale: float = 2.0**126
    margin: int = 1
    interval: int = 20
    top: float = FP16.max_finite

    needs: ClassVar[tuple[str, ...]] = ("amax",)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("init_scale", "min_scale", "max_scale"):
            if math.frexp(getattr(self, name))[0] != 0.5:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: expected a power of two; pass 2.0**16 or another"
                )
        if self.max_scale > 2.0**126:
            raise ValueError(
                f"max_scale={self.max_scale!r}: expected at most 2.0**126; that is the default"
            )
        if as_int("margin", self.margin, 0, "for no margin pass 0") > 12:
            raise ValueError(
                f"margin={self.margin!r}: expected at most 12 bits, or little of the format is left"
            )
        as_int("interval", self.interval, 1, "for a doubling at every chance pass 1")
        if not 1 <= as_float("top", self.top) <= 65536:
            raise ValueError(
                f"top={self.top!r}: expected a number from 1 to 65536; fp16's is {FP16.max_finite}, E4M3's 448.0"
            )

    def start(self, xp: ModuleType) -> HeadroomState:
        return HeadroomState(xp.int32(0), xp.float32(0))

    def decide(
        self, xp: ModuleType, used: float, newest: float, memory: Memory, seen: Observation
    ) -> tuple[float, HeadroomState]:
        assert seen.amax is not None  # noqa: S101 - it is needed, so it was looked for
        clean, before = memory
        lost = seen.found_inf | ~xp.isfinite(seen.amax)
        amax = xp.where(lost | (seen.amax < 2.0**-126), 0, seen.amax)  # XLA takes subnormals for 0
        fits = xp.minimum(newest, self._largest(xp, amax))
        peak, growth_tracker = xp.maximum(before, amax), clean + 1
        goes_on = ~lost & (fits == newest) & (growth_tracker < self.interval)
        grows = (
            ~lost
            & (fits == newest)
            & (growth_tracker >= self.interval)
            & (self._largest(xp, peak) > newest)
        )
        scale = xp.where(lost, xp.minimum(newest, used / 2), xp.where(grows, 2 * newest, fits))
        return scale, HeadroomState(
            xp.where(goes_on, growth_tracker, 0), xp.where(goes_on, peak, xp.float32(0))
        )

    def _largest(self, xp: ModuleType, amax: float) -> float:
        """Return the largest power of two S with amax * S <= top / 2^margin, between 2^-126 and 2^126."""
        limit = xp.float32(self.top / 2.0**self.margin)
        ratio = limit / xp.maximum(amax, limit * xp.float32(2.0**-126))
        # A correctly rounded quotient below a power of two stays below it.
        exponent = xp.frexp(xp.maximum(ratio, xp.float32(2.0**-126)))[1] - 1
        return xp.ldexp(xp.float32(1), exponent)  # type: ignore[no-any-return]


class LogMaxState(NamedTuple):
    """The memory of `LogMax`: averages of x = log2 max|gradient|, from 0 on, and the weight their start still has."""

    mean: float  # of x, over about 1 / (1 - beta1) steps
    slow_mean: float  # of x, over about 1 / (1 - beta2)
    square: float  # of x^2, over about 1 / (1 - beta2)
    weight1: float  # beta1^steps
    weight2: float  # beta2^steps


@dataclass(frozen=True, kw_only=True)
class LogMax(Policy):
    """A policy whose scale a normally distributed log2 max|gradient| passes with a fixed, small probability.

    S = 2^(log_max - mu - z sigma), with mean and deviation from exponential averages; z = 3.09 is a probability of
    0.001. OpenSeq2Seq's (NVIDIA/OpenSeq2Seq@2383d5d, `open_seq2seq/optimizers/automatic_loss_scaler.py`,
    arXiv:1805.10387), whose first scale is 1 and which rounds no scale to a power of two. This differs in two:

    1. An overflow counts as x = log_max + 1 - log2(used): twice the least it can have been. OpenSeq2Seq averages
       2^log_max = 65536 with logarithms, which holds the scale at ``min_scale`` for about 12 000 steps.
    2. A gradient that is all zeros is left out. There its logarithm, -inf, makes the scale NaN for ever.

    ``faithful=True`` does both as OpenSeq2Seq does, and has its 16 in place of ``log_max`` in S.

    Attributes:
        log_max: log2 of where the format ends.
        beta1: weight of the past in the average of x = log2 amax from which mu is.
        beta2: weight of the past in the averages of x and x^2 from which sigma is.
        overflow_std_dev: z, in standard deviations.
        faithful: whether to do 1 and 2 as OpenSeq2Seq does.
    """

    init_scale: float = 1.0
    min_scale: float = 1.0
    max_scale: float = 2.0**24
    log_max: float = 16.0
    beta1: float = 0.99
    beta2: float = 0.999
    overflow_std_dev: float = 3.09
    faithful: bool = False

    needs: ClassVar[tuple[str, ...]] = ("amax",)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            if not 0 <= as_float(name, getattr(self, name)) < 1:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: expected a number in [0, 1); OpenSeq2Seq's are .99, .999"
                )
        for name in ("log_max", "overflow_std_dev"):
            if not 0 <= as_float(name, getattr(self, name)) <= 120:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: expected a number from 0 to 120; the defaults are 16, 3.09"
                )

    def restored(self, name: str, like: float, number: object) -> float:
        value = as_float(name, number)
        if self.faithful and not math.isfinite(value):  # what OpenSeq2Seq's arithmetic ends in
            return value
        value = round_to_float32(value)
        if name in ("mean", "slow_mean"):  # logarithms have either sign
            if not math.isfinite(value):
                raise ValueError(f"{name}={number!r}: expected a finite number; {RELOAD}")
            return value
        return super().restored(name, like, number)

    def start(self, xp: ModuleType) -> LogMaxState:
        return LogMaxState(*(xp.float32(x) for x in (0, 0, 0, 1, 1)))

    def decide(
        self, xp: ModuleType, used: float, newest: float, memory: Memory, seen: Observation
    ) -> tuple[float, LogMaxState]:
        assert seen.amax is not None  # noqa: S101 - it is needed, so it was looked for
        lost = seen.found_inf | ~xp.isfinite(seen.amax)
        least = xp.float32(2.0**self.log_max) if self.faithful else self.log_max + 1 - xp.log2(used)
        x = xp.where(lost, least, xp.log2(seen.amax))
        m, b1, b2 = LogMaxState(*memory), self.beta1, self.beta2
        mean, slow_mean = b1 * m.mean + (1 - b1) * x, b2 * m.slow_mean + (1 - b2) * x
        after = LogMaxState(
            mean, slow_mean, b2 * m.square + (1 - b2) * (x * x), m.weight1 * b1, m.weight2 * b2
        )
        mu, slow = after.mean / (1 - after.weight1), after.slow_mean / (1 - after.weight2)
        # sigma^2 = E[x^2] - E[x]^2, both over the long window
        sigma = xp.sqrt(xp.maximum(after.square / (1 - after.weight2) - slow * slow, xp.float32(0)))
        scale = xp.exp2(
            (16.0 if self.faithful else self.log_max) - (sigma * self.overflow_std_dev + mu)
        )
        if self.faithful:
            return scale, after
        empty = ~lost & (seen.amax == 0)
        kept = (xp.where(empty, old, new) for old, new in zip(memory, after, strict=True))
        return xp.where(empty, newest, scale), LogMaxState(*kept)


class ProbeState(NamedTuple):
    """The memory of `Probe`."""

    base: float  # the scale of every step that is no probe
    growth_tracker: int  # clean steps while no probe was out
    waiting: int  # updates until the probe's verdict, at most delay + 1; 0: none is out


@dataclass(frozen=True, kw_only=True)
class Probe(Growing):
    """A policy that sends a single step at the larger scale and keeps the old one until that step is judged.

    After G clean steps one iteration runs at base * growth_factor. If it is clean that becomes the base; if it
    overflows one step is lost, whatever the delay. On a stationary threshold: skips 1/(G+1+k) of the steps in bursts
    of one. Clean steps count only while no probe is out; an overflow of another step recalls the probe, whose verdict
    then counts like any step's, and lowers the base to at most used * backoff_factor. With delay 0 on a stationary
    threshold this is torch's machine.
    """

    def start(self, xp: ModuleType) -> ProbeState:
        return ProbeState(xp.float32(self.init_scale), xp.int32(0), xp.int32(0))

    def decide(
        self, xp: ModuleType, used: float, newest: float, memory: Memory, seen: Observation
    ) -> tuple[float, ProbeState]:
        base, growth_tracker, waiting = memory
        found, verdict = seen.found_inf, waiting == 1
        lowered = self.bounded(xp, xp.minimum(base, used * self.backoff_factor))
        base = xp.where(verdict, xp.where(found, base, used), xp.where(found, lowered, base))
        growth_tracker = xp.where(found | verdict, 0, growth_tracker + (waiting == 0))
        waiting = xp.where(found, 0, xp.maximum(waiting - 1, 0))
        sends = growth_tracker >= self.growth_interval
        scale = xp.where(sends, base * self.growth_factor, base)
        return scale, ProbeState(
            base, xp.where(sends, 0, growth_tracker), xp.where(sends, self.delay + 1, waiting)
        )

    def overridden(self, xp: ModuleType, memory: Memory, scale: float) -> ProbeState:
        _, growth_tracker, _ = memory
        return ProbeState(scale, growth_tracker, xp.int32(0))  # type: ignore[arg-type]

    def settled(self, newest: float, memory: Memory) -> float:
        return memory[0]  # the base: a probe on its way is recalled


def held(name: str, scale: object) -> float:
    """Return a scale as float32 holds it; refuse one whose reciprocal would not be a normal number's."""
    value = round_to_float32(as_float(name, scale))
    if not 2.0**-126 <= value < math.inf:
        raise ValueError(
            f"{name}={scale!r}: expected a number from 2.0**-126 to 2.0**127; torch starts at 2.0**16"
        )
    return value


def flatten(state: PolicyState) -> list[float]:
    """Return every number of a state, in order: what a checkpoint holds."""
    return [state.scale, *state.pending, *state.memory]


def unflatten(policy: Policy, numbers: object) -> PolicyState:
    """Return the state that `flatten` gave these numbers for; refuse others."""
    first = policy.init()
    if not isinstance(numbers, (list, tuple)):
        raise TypeError(f"state={numbers!r}: expected a list of numbers; {RELOAD}")
    wanted = len(flatten(first))
    if len(numbers) != wanted:
        raise ValueError(
            f"{len(numbers)} numbers: expected the {wanted} of {type(policy).__name__}(delay={policy.delay}); "
            "load a state into the policy it was saved from"
        )
    pending = [f"pending[{place}]" for place in range(policy.delay)]
    rest = zip(["scale", *pending, *getattr(first.memory, "_fields", ())], numbers, strict=True)

    def restored(like: float) -> float:
        name, number = next(rest)
        return policy.restored(name, like, number)

    return _map(restored, first)


def _queued(state: PolicyState, scale: float, memory: Memory) -> PolicyState:
    in_force, *pending = (state.scale, *state.pending, scale)[1:]
    return PolicyState(in_force, tuple(pending), memory)


def _map(leaf: Callable[[float], float], state: PolicyState) -> PolicyState:
    """Return a state with `leaf` applied to every number, in the order of `flatten`."""
    make = getattr(type(state.memory), "_make", tuple)
    scale, pending = leaf(state.scale), tuple(map(leaf, state.pending))
    return PolicyState(scale, pending, make(map(leaf, state.memory)))


def _as_scalar(value: Any) -> Any:
    return np.int32(value) if isinstance(value, int) else np.float32(value)


def _as_python(value: Any) -> Any:
    return value.item()
