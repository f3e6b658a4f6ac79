"""A single step tries the larger scale, and the others keep the old one until it is judged."""

from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

from ampsim.core.policies.base import Growing, Memory, Observation


class ProbeState(NamedTuple):
    """The memory of `Probe`."""

    base: float  # the scale of every step that is no probe
    growth_tracker: int  # clean steps while no probe was out
    waiting: int  # updates until the probe's verdict, at most delay + 1; 0: none is out


@dataclass(frozen=True, kw_only=True)
class Probe(Growing):
    """A policy that sends a single step at the larger scale and keeps the old one until that step is judged.

    After G clean steps one iteration runs at base * growth_factor. If it is clean that becomes the base; if it
    overflows one step is lost, whatever the delay. On a stationary ceiling: skips 1/(G+1+k) of the steps in bursts
    of one. Clean steps count only while no probe is out; an overflow of another step recalls the probe, whose verdict
    then counts like any step's, and lowers the base to at most used * backoff_factor. With delay 0 on a stationary
    ceiling this is torch's machine.
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
        return scale, ProbeState(base, xp.where(sends, 0, growth_tracker), xp.where(sends, self.delay + 1, waiting))

    def overridden(self, xp: ModuleType, memory: Memory, scale: float) -> ProbeState:
        _, growth_tracker, _ = memory
        return ProbeState(scale, growth_tracker, xp.int32(0))  # type: ignore[arg-type]

    def settled(self, newest: float, memory: Memory) -> float:
        return memory[0]  # the base: a probe on its way is recalled
