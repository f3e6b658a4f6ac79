"""What every loss-scale policy outside the backoff family shares: the queue, the bounds, the state.

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

from ampsim.core.arguments import as_float, as_int, check_factors
from ampsim.core.machine import round_to_float32

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
        low, init, high = (held(name, getattr(self, name)) for name in ("min_scale", "init_scale", "max_scale"))
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
            raise ValueError(f"{name}={number!r}: expected a finite number {'above' if scale else 'from'} 0; {RELOAD}")
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

    def update(self, state: PolicyState, found_inf: object, *, synchronous: bool = False) -> PolicyState:
        """Return the state after an iteration, of which an `Observation` or only its `found_inf` is given."""
        seen = found_inf if isinstance(found_inf, Observation) else Observation(bool(found_inf))
        numbers = (None if value is None else np.float32(value) for value in (seen.amax, seen.saturated))
        as_scalars: list[Any] = [np.bool_(bool(seen)), *numbers]
        with np.errstate(all="ignore"):  # inf and NaN are looked for, and branches not taken are computed too
            after = self.update_in(np, _map(_as_scalar, state), Observation(*as_scalars))
            after = self.synchronized(np, after) if synchronous else after
        return _map(_as_python, after)

    def override(self, state: PolicyState, new_scale: float, *, synchronous: bool = False) -> PolicyState:
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


def held(name: str, scale: object) -> float:
    """Return a scale as float32 holds it; refuse one whose reciprocal would not be a normal number's."""
    value = round_to_float32(as_float(name, scale))
    if not 2.0**-126 <= value < math.inf:
        raise ValueError(f"{name}={scale!r}: expected a number from 2.0**-126 to 2.0**127; torch starts at 2.0**16")
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
