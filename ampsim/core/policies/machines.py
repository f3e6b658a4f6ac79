"""Loss-scale policies outside the backoff family, one class each; `policy` says how they work.

>>> from ampsim import replay
>>> from ampsim.core.policies import Headroom, Observation
>>> history = [Observation(False, amax=1.0), Observation(False, amax=3.0), Observation(True, amax=float("inf"))]
>>> replay(Headroom(init_scale=2.0**15, margin=1), history).tolist()  # 1 bit between amax and 65504
[16384.0, 8192.0, 4096.0]
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ampsim.core.arguments import number, whole
from ampsim.core.policies.base import Observation as Observation
from ampsim.core.policies.base import Policy as Policy
from ampsim.core.policies.base import PolicyState as PolicyState
from ampsim.core.policies.base import held


class DeduplicatedState(NamedTuple):
    """Of policies that count clean steps."""

    growth_tracker: Any  # since the last growth or overflow


@dataclass(frozen=True, kw_only=True)
class _Stepwise(Policy):
    """Multiplies by a factor after a number of clean steps, by another after an overflow."""

    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000  # clean steps before a growth

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= number("growth_factor", self.growth_factor) < math.inf:
            raise ValueError(f"growth_factor={self.growth_factor!r}: expected a finite number >= 1; for never pass 1.0")
        if not 0 < number("backoff_factor", self.backoff_factor) <= 1:
            raise ValueError(f"backoff_factor={self.backoff_factor!r}: expected a number in (0, 1]; torch's is 0.5")
        whole("growth_interval", self.growth_interval, 1, "to never grow pass growth_factor=1.0")

    def start(self, xp: Any) -> Any:
        return DeduplicatedState(xp.int32(0))


@dataclass(frozen=True, kw_only=True)
class Deduplicated(_Stepwise):
    """Backoff that a pipeline's burst of overflows pays once.

    With delay k one scale that was too large makes k + 1 iterations overflow, and a `Rule` backs off at each. Here
    an overflow says only that the scale *it used* was too large: new = min(newest, used * backoff_factor). A clean
    step counts only at the newest scale. On a stationary ceiling it skips (k+1)/(G+2k+1) of the steps.
    With delay 0 this is torch's machine.
    """

    def decide(
        self, xp: Any, used: Any, newest: Any, memory: DeduplicatedState, seen: Observation
    ) -> tuple[Any, DeduplicatedState]:
        bad = self.is_bad(seen)
        growth_tracker = xp.where(bad, 0, memory.growth_tracker + (used == newest))
        grows = growth_tracker >= self.growth_interval
        kept = xp.where(grows, newest * self.growth_factor, newest)
        scale = xp.where(bad, xp.minimum(newest, used * self.backoff_factor), kept)
        return scale, DeduplicatedState(xp.where(grows, 0, growth_tracker))

    def is_bad(self, seen: Observation) -> Any:
        """Whether the scale that was used was too large."""
        return seen.found_inf


@dataclass(frozen=True, kw_only=True)
class Ratio(Deduplicated):
    """Backs off when too many elements saturate: the gradient rule of FP8-LM (arXiv:2310.18313, section 2.1).

    Halves when more than 0.001 % of the elements stand at the format's maximum, doubles after 1000 steps below. The
    paper spreads the doubling over those steps: ``growth_factor=2 ** (1 / 1000), growth_interval=1``; in one
    step the scale stays a power of two. The released code (Azure/MS-AMP@0f4c06f, `msamp/nn/distributed.py`)
    has a constant 1/sqrt(ranks) in its place. A non-finite gradient counts as saturated.
    """

    growth_interval: int = 1000
    threshold: float = 1e-5  # share of saturated elements from which on the scale is too large
    top: float = 65504.0  # for whoever counts: the largest number of the gradients' format; 448 for E4M3

    needs: ClassVar[tuple[str, ...]] = ("saturated",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= number("threshold", self.threshold) < 1:
            raise ValueError(f"threshold={self.threshold!r}: expected a share in [0, 1); FP8-LM's is 1e-5")
        if not 0 < number("top", self.top) < math.inf:
            raise ValueError(f"top={self.top!r}: expected a positive finite number; fp16's is 65504.0")

    def is_bad(self, seen: Observation) -> Any:
        return seen.found_inf | (seen.saturated > self.threshold)


class ProbeState(NamedTuple):
    """Of `Probe`."""

    base: Any  # the scale of every step that is no probe
    growth_tracker: Any  # clean steps while no probe was out
    waiting: Any  # updates until the probe's verdict, at most delay + 1; 0: none is out


@dataclass(frozen=True, kw_only=True)
class Probe(_Stepwise):
    """Sends a single step at the larger scale and keeps the old one until that step is judged.

    After G clean steps one iteration runs at base * growth_factor. If it is clean that becomes the base; if it
    overflows one step is lost, whatever the delay. On a stationary ceiling: skips 1/(G+1+k) of the steps in bursts
    of one. Clean steps count only while no probe is out; an overflow of another step recalls the probe, whose verdict
    then counts like any step's, and lowers the base to at most used * backoff_factor. With delay 0 on a stationary
    ceiling this is torch's machine.
    """

    def start(self, xp: Any) -> Any:
        return ProbeState(xp.float32(self.init_scale), xp.int32(0), xp.int32(0))

    def decide(self, xp: Any, used: Any, newest: Any, memory: ProbeState, seen: Observation) -> tuple[Any, ProbeState]:
        found, verdict = seen.found_inf, memory.waiting == 1
        lowered = self._bounded(xp, xp.minimum(memory.base, used * self.backoff_factor))
        base = xp.where(verdict, xp.where(found, memory.base, used), xp.where(found, lowered, memory.base))
        growth_tracker = xp.where(found | verdict, 0, memory.growth_tracker + (memory.waiting == 0))
        waiting = xp.where(found, 0, xp.maximum(memory.waiting - 1, 0))
        sends = growth_tracker >= self.growth_interval
        scale = xp.where(sends, base * self.growth_factor, base)
        waiting = xp.where(sends, self.delay + 1, waiting)
        return scale, ProbeState(base, xp.where(sends, 0, growth_tracker), waiting)

    def overridden(self, xp: Any, memory: ProbeState, scale: Any) -> ProbeState:
        return ProbeState(scale, memory.growth_tracker, xp.int32(0))

    def settled(self, newest: Any, memory: ProbeState) -> Any:
        return memory.base  # a probe on its way is recalled


class HeadroomState(NamedTuple):
    """Of `Headroom`."""

    growth_tracker: Any  # steps of the interval that runs; a fall or an overflow begins another
    peak: Any  # largest unscaled gradient in them


@dataclass(frozen=True, kw_only=True)
class Headroom(Policy):
    """Keeps `margin` bits between the largest gradient and the format's top, and never overflows to find out.

    The scale is a power of two. It falls at once to the largest with amax * S <= top / 2^margin. At the end of each
    `interval` of clean steps it doubles if the largest gradient in them leaves the margin at the doubled scale too.
    An overflow, whose size is not known, halves the scale that was used.
    """

    max_scale: float = 2.0**126
    margin: int = 1  # bits
    interval: int = 20  # clean steps
    top: float = 65504.0  # largest number of the gradients' format

    needs: ClassVar[tuple[str, ...]] = ("amax",)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("init_scale", "min_scale", "max_scale"):
            if math.frexp(getattr(self, name))[0] != 0.5:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected a power of two; pass 2.0**16 or another")
        if self.max_scale > 2.0**126:
            raise ValueError(f"max_scale={self.max_scale!r}: expected at most 2.0**126; that is the default")
        if whole("margin", self.margin, 0, "for no margin pass 0") > 12:
            raise ValueError(f"margin={self.margin!r}: expected at most 12 bits, or little of the format is left")
        whole("interval", self.interval, 1, "for a doubling at every chance pass 1")
        if not 1 <= number("top", self.top) <= 65536:
            raise ValueError(f"top={self.top!r}: expected a number from 1 to 65536; fp16's is 65504.0, E4M3's 448.0")

    def start(self, xp: Any) -> Any:
        return HeadroomState(xp.int32(0), xp.float32(0))

    def decide(
        self, xp: Any, used: Any, newest: Any, memory: HeadroomState, seen: Observation
    ) -> tuple[Any, HeadroomState]:
        lost = seen.found_inf | ~xp.isfinite(seen.amax)
        amax = xp.where(lost | (seen.amax < 2.0**-126), 0, seen.amax)  # XLA takes subnormals for 0
        fits = xp.minimum(newest, self._largest(xp, amax))
        peak, growth_tracker = xp.maximum(memory.peak, amax), memory.growth_tracker + 1
        goes_on = ~lost & (fits == newest) & (growth_tracker < self.interval)
        grows = ~lost & (fits == newest) & (growth_tracker >= self.interval) & (self._largest(xp, peak) > newest)
        scale = xp.where(lost, xp.minimum(newest, used / 2), xp.where(grows, 2 * newest, fits))
        return scale, HeadroomState(xp.where(goes_on, growth_tracker, 0), xp.where(goes_on, peak, xp.float32(0)))

    def _largest(self, xp: Any, amax: Any) -> Any:
        """The largest power of two S with amax * S <= top / 2^margin, between 2^-126 and 2^126."""
        limit = xp.float32(self.top / 2.0**self.margin)
        ratio = limit / xp.maximum(amax, limit * xp.float32(2.0**-126))
        # A correctly rounded quotient below a power of two stays below it.
        return xp.ldexp(xp.float32(1), xp.frexp(xp.maximum(ratio, xp.float32(2.0**-126)))[1] - 1)


class LogMaxState(NamedTuple):
    """Of `LogMax`: averages of x = log2 max|gradient|, from 0 on, and the weight their start still has."""

    mean: Any  # of x, over about 1 / (1 - beta1) steps
    slow_mean: Any  # of x, over about 1 / (1 - beta2)
    square: Any  # of x^2, over about 1 / (1 - beta2)
    weight1: Any  # beta1^steps
    weight2: Any  # beta2^steps


@dataclass(frozen=True, kw_only=True)
class LogMax(Policy):
    """A scale that a normally distributed log2 max|gradient| passes with a fixed, small probability.

    S = 2^(log_max - mu - z sigma), with mean and deviation from exponential averages; z = 3.09 is a probability of
    0.001. OpenSeq2Seq's (NVIDIA/OpenSeq2Seq@2383d5d, `open_seq2seq/optimizers/automatic_loss_scaler.py`,
    arXiv:1805.10387), whose first scale is 1 and which rounds no scale to a power of two. This differs in two:

    1. An overflow counts as x = log_max + 1 - log2(used): twice the least it can have been. OpenSeq2Seq averages
       2^log_max = 65536 with logarithms, which holds the scale at ``min_scale`` for about 12 000 steps.
    2. A gradient that is all zeros is left out. There its logarithm, -inf, makes the scale NaN for ever.

    ``faithful=True`` does both as OpenSeq2Seq does, and has its 16 in place of ``log_max`` in S.
    """

    init_scale: float = 1.0
    min_scale: float = 1.0
    max_scale: float = 2.0**24
    log_max: float = 16.0  # log2 of where the format ends
    beta1: float = 0.99
    beta2: float = 0.999
    overflow_std_dev: float = 3.09  # z
    faithful: bool = False

    needs: ClassVar[tuple[str, ...]] = ("amax",)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            if not 0 <= number(name, getattr(self, name)) < 1:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: expected a number in [0, 1); OpenSeq2Seq's are .99, .999"
                )
        for name in ("log_max", "overflow_std_dev"):
            if not 0 <= number(name, getattr(self, name)) <= 120:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: expected a number from 0 to 120; the defaults are 16, 3.09"
                )

    def start(self, xp: Any) -> Any:
        return LogMaxState(*(xp.float32(x) for x in (0, 0, 0, 1, 1)))

    def decide(
        self, xp: Any, used: Any, newest: Any, memory: LogMaxState, seen: Observation
    ) -> tuple[Any, LogMaxState]:
        lost = seen.found_inf | ~xp.isfinite(seen.amax)
        least = xp.float32(2.0**self.log_max) if self.faithful else self.log_max + 1 - xp.log2(used)
        x = xp.where(lost, least, xp.log2(seen.amax))
        after = self._averaged(memory, x)
        mu, slow = after.mean / (1 - after.weight1), after.slow_mean / (1 - after.weight2)
        # sigma^2 = E[x^2] - E[x]^2, both over the long window
        sigma = xp.sqrt(xp.maximum(after.square / (1 - after.weight2) - slow * slow, xp.float32(0)))
        scale = xp.exp2((16.0 if self.faithful else self.log_max) - (sigma * self.overflow_std_dev + mu))
        if self.faithful:
            return scale, after
        empty = ~lost & (seen.amax == 0)
        kept = (xp.where(empty, old, new) for old, new in zip(memory, after, strict=True))
        return xp.where(empty, newest, scale), LogMaxState(*kept)

    def _averaged(self, m: LogMaxState, x: Any) -> LogMaxState:
        b1, b2 = self.beta1, self.beta2
        return LogMaxState(
            b1 * m.mean + (1 - b1) * x,
            b2 * m.slow_mean + (1 - b2) * x,
            b2 * m.square + (1 - b2) * (x * x),
            m.weight1 * b1,
            m.weight2 * b2,
        )


class FloorScheduleState(NamedTuple):
    """Of `FloorSchedule`."""

    growth_tracker: Any  # since the last growth or overflow
    step: Any  # updates so far, up to the last milestone


@dataclass(frozen=True, kw_only=True)
class FloorSchedule(_Stepwise):
    """Torch's machine with a floor that rises at milestones.

    ``milestones=((40_000, 8192.0), (150_000, 32768.0))`` lifts the scale to at least 8192 with the 40 000th update:
    Mellempudi et al. 2019 (arXiv:1905.12334) so kept fp8 training from settling too low. Each backs off by itself
    with a delay, as with ``Rule(delay=k)``, of which this is the whole for no milestones.
    """

    milestones: tuple[tuple[int, float], ...] = ()  # (updates, floor)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "milestones", tuple((step, floor) for step, floor in self.milestones))
        steps = [whole("milestone", step, 1, "to start with a floor pass min_scale") for step, _ in self.milestones]
        floors = [held("floor", floor) for _, floor in self.milestones]
        if steps != sorted(set(steps)):
            raise ValueError(f"milestones={self.milestones!r}: expected rising steps; sort them")
        if floors != sorted(floors) or not all(self.min_scale <= floor <= self.max_scale for floor in floors):
            raise ValueError(
                f"milestones={self.milestones!r}: expected floors that do not fall, within [min_scale, max_scale] = "
                f"[{self.min_scale!r}, {self.max_scale!r}]; widen the bounds or sort the floors"
            )

    def start(self, xp: Any) -> Any:
        return FloorScheduleState(xp.int32(0), xp.int32(0))

    def decide(
        self, xp: Any, used: Any, newest: Any, memory: FloorScheduleState, seen: Observation
    ) -> tuple[Any, FloorScheduleState]:
        growth_tracker = xp.where(seen.found_inf, 0, memory.growth_tracker + 1)
        grows = growth_tracker >= self.growth_interval
        factor = xp.where(
            seen.found_inf,
            xp.float32(self.backoff_factor),
            xp.where(grows, xp.float32(self.growth_factor), xp.float32(1)),
        )
        scale = newest * factor
        last = self.milestones[-1][0] if self.milestones else 0
        step = xp.minimum(memory.step + 1, last)
        for at, floor in self.milestones:
            scale = xp.where(step >= at, xp.maximum(scale, xp.float32(floor)), scale)
        return scale, FloorScheduleState(xp.where(grows, 0, growth_tracker), step)
