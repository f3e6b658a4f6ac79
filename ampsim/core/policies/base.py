"""What every loss-scale policy outside the backoff family shares: the queue, the bounds, the state.

Theory of operation
-------------------
A `Policy` is a frozen dataclass of numbers. ``init(xp)`` makes the first state and ``update(xp, state, seen)`` the
next one. Both are written without a branch on an array namespace, so the same lines run on numpy scalars in
float32 and are traced by JAX; `machine.init` and `machine.update` take a policy wherever they take a `Rule`.
An update learns what was `Observation` in one iteration: whether the gradients overflowed and, if the policy wants
it, how large they were.

With ``delay`` = k a decision takes effect k updates after it was made, as in a pipeline whose optimizer runs
behind. The state holds the queue: ``scale`` is in force, that is, the next update reports on an iteration that
used it, and ``pending`` are the scales of the k iterations after that one. So ``scale`` means what it means with
``Rule(delay=k)``, and replay reads it. A pipeline of depth k begins iterations k ahead of the reports: what it
makes of j updates is used by iteration j + k, whose scale is ``newest``. Both views give iteration i the same
scale, and a policy sees both ends of the queue, so it knows which scale a report is about.

The scale stays finite and within [``min_scale``, ``max_scale``]; ``policies`` names the one exception.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ampsim.core import machine
from ampsim.core.arguments import number, whole


@dataclass(frozen=True)
class Observation:
    """What one iteration showed of its gradients. True if they overflowed, so that every `Rule` takes it."""

    found_inf: Any
    """Whether any gradient was inf or NaN."""
    amax: Any = None
    """Largest magnitude of the gradients once *unscaled*; inf or NaN where it is not known for an overflow."""
    saturated: Any = None
    """Share of the elements at the largest number of their format, 0 to 1."""

    def __bool__(self) -> bool:
        return bool(self.found_inf)


class PolicyState(NamedTuple):
    """What a policy carries: float32 and int32 scalars, as Python's numbers in core, as arrays in JAX."""

    scale: Any  # in force: of the iteration that the next update reports on
    pending: tuple[Any, ...]  # of the k iterations after it, oldest first
    memory: Any  # the policy's own, a NamedTuple

    @property
    def newest(self) -> Any:
        """The scale decided last; of the iteration that a pipeline of depth k begins next."""
        return self.pending[-1] if self.pending else self.scale

    @property
    def growth_tracker(self) -> Any:
        """Clean steps counted towards the next growth; 0 for policies that count none."""
        return getattr(self.memory, "growth_tracker", 0)


class NoMemory(NamedTuple):
    """Of a policy that remembers nothing."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The queue, the bounds and the checks that all policies share. A policy defines `decide` and `start`.

    Raises ValueError or TypeError, with the value, what was expected and the cure.
    """

    init_scale: float = 2.0**16
    min_scale: float = 2.0**-126  # the smallest normal float32: the reciprocal is finite, nothing is flushed
    max_scale: float = 2.0**127
    delay: int = 0  # updates between a decision and its first use; a pipeline's depth

    needs: ClassVar[tuple[str, ...]] = ()  # what `decide` reads of `Observation` beside found_inf

    def __post_init__(self) -> None:
        low, init, high = (held(name, getattr(self, name)) for name in ("min_scale", "init_scale", "max_scale"))
        if not low <= init <= high:
            raise ValueError(
                f"init_scale={self.init_scale!r}: expected within [min_scale, max_scale] = "
                f"[{self.min_scale!r}, {self.max_scale!r}]; widen them or start inside"
            )
        whole("delay", self.delay, 0, "to use each scale at once pass delay=0")

    def start(self, xp: Any) -> Any:
        """The first memory."""
        return NoMemory()

    def decide(self, xp: Any, used: Any, newest: Any, memory: Any, seen: Observation) -> tuple[Any, Any]:
        """The next scale to be used, unbounded, and the next memory.

        Args:
            xp: numpy or jax.numpy.
            used: the scale of the iteration that is reported.
            newest: the scale decided last.
            memory: what `start` or the last `decide` returned.
            seen: with the fields that `needs` names; booleans and float32 scalars.
        """
        raise NotImplementedError

    def overridden(self, xp: Any, memory: Any, scale: Any) -> Any:
        """The memory when all scales to come are `scale`; the default keeps it, as torch keeps its tracker."""
        return memory

    def init(self, xp: Any) -> PolicyState:
        """The state before the first update."""
        first = xp.float32(self.init_scale)
        return PolicyState(first, (first,) * self.delay, self.start(xp))

    def update(self, xp: Any, state: PolicyState, seen: Observation) -> PolicyState:
        """The state after one iteration was reported."""
        decided, memory = self.decide(xp, state.scale, state.newest, state.memory, self.checked(seen))
        return self._queued(state, self._bounded(xp, decided), memory)

    def override(self, xp: Any, state: PolicyState, new_scale: Any) -> PolicyState:
        """The state after the scale was set by hand; it waits its turn like a decided one."""
        scale = xp.float32(new_scale)
        return self._queued(state, scale, self.overridden(xp, state.memory, scale))

    def synchronized(self, xp: Any, state: PolicyState) -> PolicyState:
        """The state after a synchronous update: every iteration from the next one on uses the settled scale."""
        scale = self.settled(state.newest, state.memory)
        return PolicyState(scale, (scale,) * self.delay, self.overridden(xp, state.memory, scale))

    def settled(self, newest: Any, memory: Any) -> Any:
        """The scale to go on with when the queue is emptied."""
        return newest

    def checked(self, seen: Observation) -> Observation:
        """`seen`, if it has what this policy needs."""
        for name in self.needs:
            if getattr(seen, name, None) is None:
                raise ValueError(
                    f"{name}=None: {type(self).__name__} expected {name} with every update; pass "
                    f"Observation(found_inf, {name}=...), in torch use a scaler made with this policy"
                )
        return seen

    def _bounded(self, xp: Any, scale: Any) -> Any:
        low, high = (xp.float32(bound) for bound in (self.min_scale, self.max_scale))
        return xp.minimum(xp.maximum(scale, low), high)  # these let NaN through, as TensorFlow's do

    def _queued(self, state: PolicyState, scale: Any, memory: Any) -> PolicyState:
        in_force, *pending = (state.scale, *state.pending, scale)[1:]
        return PolicyState(in_force, tuple(pending), memory)


def held(name: str, scale: Any) -> float:
    """A scale as float32 holds it; refused where its reciprocal would not be a normal number's."""
    value = machine.round_to_float32(number(name, scale))
    if not 2.0**-126 <= value < math.inf:
        raise ValueError(f"{name}={scale!r}: expected a number from 2.0**-126 to 2.0**127; torch starts at 2.0**16")
    return value


def _mapped(leaf: Callable[[Any], Any], value: Any) -> Any:
    """A state with `leaf` applied to every number."""
    if not isinstance(value, tuple):
        return leaf(value)
    parts = (_mapped(leaf, part) for part in value)
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def _as_numpy(value: float) -> Any:
    return np.int32(value) if isinstance(value, int) else np.float32(value)


def flatten(state: PolicyState) -> list[float]:
    """Every number of a state, in order: what a checkpoint holds."""
    numbers: list[float] = []
    _mapped(numbers.append, state)
    return numbers


def unflatten(policy: Policy, numbers: list[float]) -> PolicyState:
    """The state that `flatten` gave these numbers for."""
    wanted = flatten(machine.init(policy))
    if len(numbers) != len(wanted):
        raise ValueError(
            f"{len(numbers)} numbers: expected the {len(wanted)} of {type(policy).__name__}(delay={policy.delay}); "
            "load a state into the policy it was saved from"
        )
    rest = iter(numbers)
    state: PolicyState = _mapped(lambda like: type(like)(next(rest)), machine.init(policy))
    return state


def _as_python(state: PolicyState) -> PolicyState:
    plain: PolicyState = _mapped(lambda leaf: leaf.item(), state)
    return plain


@machine.init.register
def _(rule: Policy) -> PolicyState:
    return _as_python(rule.init(np))


@machine.update.register
def _(rule: Policy, state: PolicyState, found_inf: Any, *, synchronous: bool = False) -> PolicyState:
    seen = found_inf if isinstance(found_inf, Observation) else Observation(found_inf)
    rest = (None if value is None else np.float32(value) for value in (seen.amax, seen.saturated))
    with np.errstate(all="ignore"):  # inf and NaN are looked for, and branches not taken are computed too
        after = rule.update(np, _mapped(_as_numpy, state), Observation(np.bool_(bool(seen)), *rest))
        after = rule.synchronized(np, after) if synchronous else after
    return _as_python(after)


@machine.override.register
def _(rule: Policy, state: PolicyState, new_scale: float, *, synchronous: bool = False) -> PolicyState:
    with np.errstate(all="ignore"):
        after = rule.override(np, _mapped(_as_numpy, state), new_scale)
        after = rule.synchronized(np, after) if synchronous else after
    return _as_python(after)
