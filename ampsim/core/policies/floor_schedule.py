"""Torch's machine with a floor that rises at milestones."""

from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

from ampsim.core.arguments import as_int
from ampsim.core.policies.base import Growing, Memory, Observation, held


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
        object.__setattr__(self, "milestones", tuple((step, floor) for step, floor in self.milestones))
        steps = [as_int("milestone", step, 1, "to start with a floor pass min_scale") for step, _ in self.milestones]
        floors = [held("floor", floor) for _, floor in self.milestones]
        if steps != sorted(set(steps)):
            raise ValueError(f"milestones={self.milestones!r}: expected rising steps; sort them")
        if floors != sorted(floors) or not all(self.min_scale <= floor <= self.max_scale for floor in floors):
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
