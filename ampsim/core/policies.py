"""Policies: loss scalers beyond the backoff rule, each a pair of pure functions over its own state.

A policy reads its own numbers and an `Observation` of each iteration; it has no tensors.

>>> from ampsim import replay
>>> from ampsim.core.policies import Headroom, Observation
>>> history = [Observation(False, amax=1.0), Observation(False, amax=3.0), Observation(True, amax=float("inf"))]
>>> replay(Headroom(init_scale=2.0**15, margin=1), history).tolist()  # 1 bit between amax and fp16's maximum
[16384.0, 8192.0, 4096.0]

Theory of operation
-------------------
A `Policy` is a frozen dataclass of numbers and two pure functions: ``start(xp)`` returns the first memory, and
``decide(xp, ...)`` returns the next scale and the next memory. Both are free of branches and take an array namespace,
so the same code runs on float32 scalars of numpy and is traced by JAX. The queue below makes state machines of
policies: `machine.init`, `update`, and `override` accept a policy wherever they accept a `Rule`. An update receives an
`Observation` of one iteration: whether the gradients overflowed and, if the policy needs it, how large they were.

With ``delay`` = k, a decision takes effect k updates later, as in a pipeline whose optimizer runs
behind. The state has the queue: ``scale`` is the scale of the iteration that the next update
reports, and ``pending`` has the scales of the k iterations after it. So ``scale`` has the same
meaning as with ``Rule(delay=k)``, and replay reads it. A pipeline of depth k begins iterations k
ahead of the reports: iteration j + k uses the scale after j updates, ``newest``. Both views give
iteration i the same scale. A policy sees both ends of the queue, so it knows the scale of the
reported iteration.

The scale stays finite and within [``min_scale``, ``max_scale``], except for `LogMax` with
``faithful=True``.
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

RELOAD = "load an unchanged state dict"
# Of one policy it is a NamedTuple; under JAX its numbers are arrays.
Memory = tuple[float, ...]


@dataclass(frozen=True)
class Observation:
    """Input of a policy for one iteration. Its truth value is `found_inf`, so a `Rule` accepts it
    too.

    Attributes:
        found_inf: Whether any gradient was inf or NaN.
        amax: Largest magnitude of the *unscaled* gradients; inf or NaN if unknown because of an
            overflow.
    """

    found_inf: bool
    amax: float | None = None

    def __bool__(self) -> bool:
        return bool(self.found_inf)


class PolicyState(NamedTuple):
    """State of a policy: float32 and int32 scalars, as Python numbers in core and as arrays in JAX.

    Attributes:
        scale: Loss scale of the iteration that the next update reports.
        pending: Loss scales of the k iterations after it, oldest first.
        memory: Values of the policy, a NamedTuple.
    """

    scale: float
    pending: tuple[float, ...]
    memory: Memory

    @property
    def newest(self) -> float:
        """The newest scale, of the iteration that a pipeline of depth k begins next."""
        return self.pending[-1] if self.pending else self.scale

    @property
    def growth_tracker(self) -> int:
        """Number of finite steps counted towards the next growth; 0 for policies without a count."""
        return getattr(self.memory, "growth_tracker", 0)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Base class of policies, with the queue, the bounds, and validation. A policy defines `decide`
    and `start`.

    Attributes:
        init_scale: Initial loss scale, within the bounds.
        min_scale: Lower bound of the scale, at least 2^-126, whose reciprocal is finite in float32.
        max_scale: Upper bound of the scale.
        delay: Number of updates between a decision and its first use, at least 0; the depth of a
            pipeline.
        needs: Fields of an `Observation` that `decide` reads besides ``found_inf``.

    Raises:
        TypeError: If a field has an invalid type.
        ValueError: If a field is out of range.
    """

    init_scale: float = 2.0**16
    min_scale: float = 2.0**-126
    max_scale: float = 2.0**127
    delay: int = 0

    needs: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        low, init, high = (
            held(name, getattr(self, name))
            for name in ("min_scale", "init_scale", "max_scale")
        )
        if not low <= init <= high:
            raise ValueError(
                f"init_scale={self.init_scale!r}: expected within [min_scale, max_scale] = "
                f"[{self.min_scale!r}, {self.max_scale!r}]; widen the bounds or change init_scale"
            )
        as_int("delay", self.delay, 0, "to use each scale at once pass delay=0")

    def start(self, xp: ModuleType) -> Memory:
        """Return the first memory."""
        return ()

    def decide(
        self,
        xp: ModuleType,
        used: float,
        newest: float,
        memory: Memory,
        seen: Observation,
    ) -> tuple[float, Memory]:
        """Return the next scale, before the bounds apply, and the next memory.

        Args:
            xp: numpy or jax.numpy; all numbers are its scalars.
            used: Scale of the reported iteration.
            newest: Scale decided last.
            memory: Result of `start` or of the last `decide`.
            seen: Observation with the fields in `needs`; booleans and float32 scalars.
        """
        raise NotImplementedError

    def overridden(self, xp: ModuleType, memory: Memory, scale: float) -> Memory:
        """Return the memory after the scale is set to `scale`; the default keeps it, as torch its
        tracker.
        """
        return memory

    def settled(self, newest: float, memory: Memory) -> float:
        """Return the scale to use after the queue is emptied."""
        return newest

    # The machine, on any array namespace.

    def init_in(self, xp: ModuleType) -> PolicyState:
        """Return the state before the first update."""
        first = xp.float32(self.init_scale)
        return PolicyState(first, (first,) * self.delay, self.start(xp))

    def update_in(
        self, xp: ModuleType, state: PolicyState, seen: Observation
    ) -> PolicyState:
        """Return the state after one iteration.

        Raises:
            ValueError: If `seen` lacks a field in `needs`.
        """
        for name in self.needs:
            if getattr(seen, name) is None:
                raise ValueError(
                    f"{name}=None: {type(self).__name__} needs {name} in each update; pass "
                    f"Observation(found_inf, {name}=...), or in torch use a scaler with this policy"
                )
        decided, memory = self.decide(xp, state.scale, state.newest, state.memory, seen)
        return _queued(state, self.bounded(xp, decided), memory)

    def override_in(
        self, xp: ModuleType, state: PolicyState, new_scale: object
    ) -> PolicyState:
        """Return the state after the scale was set; it waits in the queue like a decided scale."""
        scale = xp.float32(new_scale)
        return _queued(state, scale, self.overridden(xp, state.memory, scale))

    def synchronized(self, xp: ModuleType, state: PolicyState) -> PolicyState:
        """Return the state after a synchronous update: all later iterations use the settled scale."""
        scale = self.settled(state.newest, state.memory)
        return PolicyState(
            scale, (scale,) * self.delay, self.overridden(xp, state.memory, scale)
        )

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
        """Return the state after an iteration; `found_inf` is a flag or an `Observation`."""
        seen = (
            found_inf
            if isinstance(found_inf, Observation)
            else Observation(bool(found_inf))
        )
        amax = None if seen.amax is None else np.float32(seen.amax)
        as_scalars: list[Any] = [np.bool_(bool(seen)), amax]
        # Inf and NaN are inputs, and unused branches are computed too.
        with np.errstate(all="ignore"):
            after = self.update_in(
                np, _map(_as_scalar, state), Observation(*as_scalars)
            )
            after = self.synchronized(np, after) if synchronous else after
        return _map(_as_python, after)

    def override(
        self, state: PolicyState, new_scale: float, *, synchronous: bool = False
    ) -> PolicyState:
        """Return the state after the scale was set; see `machine.override`."""
        with np.errstate(all="ignore"):
            after = self.override_in(np, _map(_as_scalar, state), new_scale)
            after = self.synchronized(np, after) if synchronous else after
        return _map(_as_python, after)


@dataclass(frozen=True, kw_only=True)
class Growing(Policy):
    """Base class of policies that grow and back off by factors, as torch's scaler.

    Attributes:
        growth_factor: Factor of a growth; at least 1.
        backoff_factor: Factor of a backoff, in (0, 1].
        growth_interval: Number of finite steps before a growth; at least 1.
    """

    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factors(self.growth_factor, self.backoff_factor)
        as_int(
            "growth_interval",
            self.growth_interval,
            1,
            "to never grow pass growth_factor=1.0",
        )


class DeduplicatedState(NamedTuple):
    """The memory of `Deduplicated`."""

    # Finite steps at the newest scale since the last growth or overflow.
    growth_tracker: int


@dataclass(frozen=True, kw_only=True)
class Deduplicated(Growing):
    """A policy that backs off once for all overflows of one scale.

    With delay k, one scale that is too large makes k + 1 iterations overflow, and a `Rule` backs
    off at each of them. This policy uses new = min(newest, used * backoff_factor) after an
    overflow. A finite step counts only at the newest scale. With a constant overflow threshold, it
    skips (k+1)/(G+2k+1) of the steps. With delay 0 it equals torch's scaler.
    """

    def start(self, xp: ModuleType) -> DeduplicatedState:
        return DeduplicatedState(xp.int32(0))

    def decide(
        self,
        xp: ModuleType,
        used: float,
        newest: float,
        memory: Memory,
        seen: Observation,
    ) -> tuple[float, DeduplicatedState]:
        (tracker,) = memory
        bad = seen.found_inf
        growth_tracker = xp.where(bad, 0, tracker + (used == newest))
        grows = growth_tracker >= self.growth_interval
        kept = xp.where(grows, newest * self.growth_factor, newest)
        scale = xp.where(bad, xp.minimum(newest, used * self.backoff_factor), kept)
        return scale, DeduplicatedState(xp.where(grows, 0, growth_tracker))


class HeadroomState(NamedTuple):
    """The memory of `Headroom`."""

    growth_tracker: (
        int  # steps of the current interval; a decrease or an overflow starts another
    )
    peak: float  # largest unscaled gradient in them


@dataclass(frozen=True, kw_only=True)
class Headroom(Policy):
    """A policy that keeps `margin` bits between the largest gradient and the format's maximum.

    It does not need overflows to find the scale, which is a power of two. The scale decreases at
    once to the largest one with amax * S <= top / 2^margin. After each `interval` of finite steps
    it doubles, if the largest gradient of these steps keeps the margin at the doubled scale. An
    overflow, whose size is unknown, halves the scale that was used.

    Attributes:
        margin: Bits between the largest gradient and the maximum, 0 to 12.
        interval: Number of finite steps before the scale may double; at least 1.
        top: Largest number of the gradients' format, 1 to 65536.
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
                    f"{name}={getattr(self, name)!r}: expected a power of two, e.g. 2.0**16"
                )
        if self.max_scale > 2.0**126:
            raise ValueError(
                f"max_scale={self.max_scale!r}: expected at most 2.0**126, the default"
            )
        if as_int("margin", self.margin, 0, "for no margin pass 0") > 12:
            raise ValueError(
                f"margin={self.margin!r}: expected at most 12 bits, as more leave little of the format"
            )
        as_int(
            "interval", self.interval, 1, "to allow a doubling after each step pass 1"
        )
        if not 1 <= as_float("top", self.top) <= 65536:
            raise ValueError(
                f"top={self.top!r}: expected a number from 1 to 65536; fp16's is {FP16.max_finite}, E4M3's 448.0"
            )

    def start(self, xp: ModuleType) -> HeadroomState:
        return HeadroomState(xp.int32(0), xp.float32(0))

    def decide(
        self,
        xp: ModuleType,
        used: float,
        newest: float,
        memory: Memory,
        seen: Observation,
    ) -> tuple[float, HeadroomState]:
        assert seen.amax is not None  # noqa: S101
        clean, before = memory
        lost = seen.found_inf | ~xp.isfinite(seen.amax)
        # XLA flushes subnormals to 0.
        amax = xp.where(lost | (seen.amax < 2.0**-126), 0, seen.amax)
        fits = xp.minimum(newest, self._largest(xp, amax))
        peak = xp.maximum(before, amax)
        growth_tracker = clean + 1
        goes_on = ~lost & (fits == newest) & (growth_tracker < self.interval)
        grows = (
            ~lost
            & (fits == newest)
            & (growth_tracker >= self.interval)
            & (self._largest(xp, peak) > newest)
        )
        scale = xp.where(
            lost, xp.minimum(newest, used / 2), xp.where(grows, 2 * newest, fits)
        )
        return scale, HeadroomState(
            xp.where(goes_on, growth_tracker, 0), xp.where(goes_on, peak, xp.float32(0))
        )

    def _largest(self, xp: ModuleType, amax: float) -> float:
        """Return the largest power of two S with amax * S <= top / 2^margin, between 2^-126 and
        2^126.
        """
        limit = xp.float32(self.top / 2.0**self.margin)
        ratio = limit / xp.maximum(amax, limit * xp.float32(2.0**-126))
        # A correctly rounded quotient below a power of two stays below it.
        exponent = xp.frexp(xp.maximum(ratio, xp.float32(2.0**-126)))[1] - 1
        return xp.ldexp(xp.float32(1), exponent)  # type: ignore[no-any-return]


class LogMaxState(NamedTuple):
    """The memory of `LogMax`: averages of x = log2 max|gradient|, and the remaining weights of
    their start at 0.
    """

    mean: float  # of x, over about 1 / (1 - beta1) steps
    slow_mean: float  # of x, over about 1 / (1 - beta2)
    square: float  # of x^2, over about 1 / (1 - beta2)
    weight1: float  # beta1^steps
    weight2: float  # beta2^steps


@dataclass(frozen=True, kw_only=True)
class LogMax(Policy):
    """A policy with a fixed, small overflow probability for normally distributed log2
    max|gradient|.

    S = 2^(log_max - mu - z sigma), with mean and standard deviation from exponential averages; z =
    3.09 is a probability of 0.001. This is the scaler of OpenSeq2Seq (NVIDIA/OpenSeq2Seq@2383d5d,
    `open_seq2seq/optimizers/automatic_loss_scaler.py`, arXiv:1805.10387): its initial scale is 1,
    and scales are not rounded to powers of two. There are two differences:

    1. An overflow counts as x = log_max + 1 - log2(used), twice its minimum. OpenSeq2Seq averages
       2^log_max = 65536 with logarithms, which keeps the scale at ``min_scale`` for about 12 000
       steps.
    2. A gradient of zeros is ignored. In OpenSeq2Seq its logarithm, -inf, makes the scale NaN
    indefinitely.

    ``faithful=True`` reproduces OpenSeq2Seq in both, and uses its constant 16 instead of
    ``log_max`` in S.

    Attributes:
        log_max: log2 of the overflow limit of the format.
        beta1: Weight of the past in the average of x = log2 amax for mu, in [0, 1).
        beta2: Weight of the past in the averages of x and x^2 for sigma, in [0, 1).
        overflow_std_dev: z, in standard deviations.
        faithful: Whether to reproduce OpenSeq2Seq in 1 and 2.
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

    def start(self, xp: ModuleType) -> LogMaxState:
        return LogMaxState(*(xp.float32(x) for x in (0, 0, 0, 1, 1)))

    def decide(
        self,
        xp: ModuleType,
        used: float,
        newest: float,
        memory: Memory,
        seen: Observation,
    ) -> tuple[float, LogMaxState]:
        assert seen.amax is not None  # noqa: S101
        lost = seen.found_inf | ~xp.isfinite(seen.amax)
        least = (
            xp.float32(2.0**self.log_max)
            if self.faithful
            else self.log_max + 1 - xp.log2(used)
        )
        x = xp.where(lost, least, xp.log2(seen.amax))
        m = LogMaxState(*memory)
        b1 = self.beta1
        b2 = self.beta2
        mean = b1 * m.mean + (1 - b1) * x
        slow_mean = b2 * m.slow_mean + (1 - b2) * x
        after = LogMaxState(
            mean,
            slow_mean,
            b2 * m.square + (1 - b2) * (x * x),
            m.weight1 * b1,
            m.weight2 * b2,
        )
        mu = after.mean / (1 - after.weight1)
        slow = after.slow_mean / (1 - after.weight2)
        # sigma^2 = E[x^2] - E[x]^2, both over the long window
        sigma = xp.sqrt(
            xp.maximum(after.square / (1 - after.weight2) - slow * slow, xp.float32(0))
        )
        scale = xp.exp2(
            (16.0 if self.faithful else self.log_max)
            - (sigma * self.overflow_std_dev + mu)
        )
        if self.faithful:
            return scale, after
        empty = ~lost & (seen.amax == 0)
        kept = (
            xp.where(empty, old, new) for old, new in zip(memory, after, strict=True)
        )
        return xp.where(empty, newest, scale), LogMaxState(*kept)


class ProbeState(NamedTuple):
    """The memory of `Probe`."""

    base: float  # scale of all steps except probes
    growth_tracker: int  # finite steps without an outstanding probe
    waiting: int  # updates until the probe's result, at most delay + 1; 0: no probe


@dataclass(frozen=True, kw_only=True)
class Probe(Growing):
    """A policy that tests a larger scale on a single step, and keeps the old scale until the result
    is known.

    After G finite steps, one iteration runs at base * growth_factor. If it is finite, this scale
    becomes the base; if it overflows, one step is skipped, whatever the delay. With a constant
    overflow threshold, it skips 1/(G+1+k) of the steps, one at a time. Finite steps count only
    without an outstanding probe. An overflow of another step cancels the probe and lowers the base
    to at most used * backoff_factor; the probe's result then counts as that of any step. With delay
    0 and a constant overflow threshold, the policy equals torch's scaler.
    """

    def start(self, xp: ModuleType) -> ProbeState:
        return ProbeState(xp.float32(self.init_scale), xp.int32(0), xp.int32(0))

    def decide(
        self,
        xp: ModuleType,
        used: float,
        newest: float,
        memory: Memory,
        seen: Observation,
    ) -> tuple[float, ProbeState]:
        base, growth_tracker, waiting = memory
        found = seen.found_inf
        verdict = waiting == 1
        lowered = self.bounded(xp, xp.minimum(base, used * self.backoff_factor))
        base = xp.where(
            verdict, xp.where(found, base, used), xp.where(found, lowered, base)
        )
        growth_tracker = xp.where(found | verdict, 0, growth_tracker + (waiting == 0))
        waiting = xp.where(found, 0, xp.maximum(waiting - 1, 0))
        sends = growth_tracker >= self.growth_interval
        scale = xp.where(sends, base * self.growth_factor, base)
        return scale, ProbeState(
            base,
            xp.where(sends, 0, growth_tracker),
            xp.where(sends, self.delay + 1, waiting),
        )

    def overridden(self, xp: ModuleType, memory: Memory, scale: float) -> ProbeState:
        _, growth_tracker, _ = memory
        return ProbeState(scale, growth_tracker, xp.int32(0))  # type: ignore[arg-type]

    def settled(self, newest: float, memory: Memory) -> float:
        return memory[0]  # the base: an outstanding probe is canceled


def held(name: str, scale: object) -> float:
    """Return a scale rounded to float32; raise ValueError below 2^-126, where the reciprocal may be
    inf.
    """
    value = round_to_float32(as_float(name, scale))
    if not 2.0**-126 <= value < math.inf:
        raise ValueError(
            f"{name}={scale!r}: expected a number from 2.0**-126 to 2.0**127; torch starts at 2.0**16"
        )
    return value


def flatten(state: PolicyState) -> list[float]:
    """Return all numbers of a state in order, for a checkpoint."""
    return [state.scale, *state.pending, *state.memory]


def unflatten(policy: Policy, numbers: object) -> PolicyState:
    """Return the state of the numbers of `flatten`; raise for invalid numbers."""
    first = policy.init()
    if not isinstance(numbers, (list, tuple)):
        raise TypeError(f"state={numbers!r}: expected a list of numbers; {RELOAD}")
    wanted = flatten(first)
    if len(numbers) != len(wanted):
        raise ValueError(
            f"{len(numbers)} numbers: expected the {len(wanted)} of {type(policy).__name__}(delay={policy.delay}); "
            "load a state into the policy it was saved from"
        )
    restored = iter([*map(_restored, wanted, numbers)])
    state = _map(lambda _: next(restored), first)
    for scale in (state.scale, *state.pending):
        if not scale > 0:
            raise ValueError(f"scale={scale!r}: expected a positive number; {RELOAD}")
    return state


def _restored(like: float, number: object) -> float:
    """Return a saved number as the int32 or float32 that it was."""
    if not isinstance(like, int):
        value = round_to_float32(as_float("state", number))
        if not math.isfinite(value):
            raise ValueError(f"state={number!r}: expected a finite number; {RELOAD}")
        return value
    count = as_int("state", number, 0, RELOAD)
    if count > 2**31 - 2:  # so that one more still fits int32
        raise ValueError(f"state={number!r}: expected at most 2**31 - 2; {RELOAD}")
    return count


def _queued(state: PolicyState, scale: float, memory: Memory) -> PolicyState:
    in_force, *pending = (state.scale, *state.pending, scale)[1:]
    return PolicyState(in_force, tuple(pending), memory)


def _map(leaf: Callable[[float], float], state: PolicyState) -> PolicyState:
    """Return a state with `leaf` applied to all numbers, in the order of `flatten`."""
    make = getattr(type(state.memory), "_make", tuple)
    scale = leaf(state.scale)
    pending = tuple(map(leaf, state.pending))
    return PolicyState(scale, pending, make(map(leaf, state.memory)))


def _as_scalar(value: Any) -> Any:
    return np.int32(value) if isinstance(value, int) else np.float32(value)


def _as_python(value: Any) -> Any:
    return value.item()
