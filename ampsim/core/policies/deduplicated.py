"""Backoff that a pipeline's burst of overflows pays once: at overflows (`Deduplicated`), at saturation (`Ratio`)."""

import math
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar, NamedTuple

from ampsim.core.arguments import as_float
from ampsim.core.formats import FP16
from ampsim.core.policies.base import Growing, Memory, Observation


class DeduplicatedState(NamedTuple):
    """The memory of `Deduplicated` and `Ratio`."""

    growth_tracker: int  # clean steps at the newest scale since the last growth or overflow


@dataclass(frozen=True, kw_only=True)
class Deduplicated(Growing):
    """A policy that backs off once for all the overflows of one scale.

    With delay k one scale that was too large makes k + 1 iterations overflow, and a `Rule` backs off at each. Here
    an overflow says only that the scale *it used* was too large: new = min(newest, used * backoff_factor). A clean
    step counts only at the newest scale. On a stationary ceiling it skips (k+1)/(G+2k+1) of the steps.
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
            raise ValueError(f"threshold={self.threshold!r}: expected a share in [0, 1); FP8-LM's is 1e-5")
        if not 0 < as_float("top", self.top) < math.inf:
            raise ValueError(f"top={self.top!r}: expected a positive finite number; fp16's is {FP16.max_finite}")

    def decide(
        self, xp: ModuleType, used: float, newest: float, memory: Memory, seen: Observation
    ) -> tuple[float, DeduplicatedState]:
        assert seen.saturated is not None  # noqa: S101 - it is needed, so it was looked for
        too_large = Observation(seen.found_inf | (seen.saturated > self.threshold))
        return super().decide(xp, used, newest, memory, too_large)
