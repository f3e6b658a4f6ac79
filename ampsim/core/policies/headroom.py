"""Bits kept free between the largest gradient and the format's top.

>>> from ampsim import replay
>>> from ampsim.core.policies import Headroom, Observation
>>> history = [Observation(False, amax=1.0), Observation(False, amax=3.0), Observation(True, amax=float("inf"))]
>>> replay(Headroom(init_scale=2.0**15, margin=1), history).tolist()  # 1 bit between amax and fp16's largest
[16384.0, 8192.0, 4096.0]
"""

import math
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar, NamedTuple

from ampsim.core.arguments import as_float, as_int
from ampsim.core.formats import FP16
from ampsim.core.policies.base import Memory, Observation, Policy


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
                raise ValueError(f"{name}={getattr(self, name)!r}: expected a power of two; pass 2.0**16 or another")
        if self.max_scale > 2.0**126:
            raise ValueError(f"max_scale={self.max_scale!r}: expected at most 2.0**126; that is the default")
        if as_int("margin", self.margin, 0, "for no margin pass 0") > 12:
            raise ValueError(f"margin={self.margin!r}: expected at most 12 bits, or little of the format is left")
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
        grows = ~lost & (fits == newest) & (growth_tracker >= self.interval) & (self._largest(xp, peak) > newest)
        scale = xp.where(lost, xp.minimum(newest, used / 2), xp.where(grows, 2 * newest, fits))
        return scale, HeadroomState(xp.where(goes_on, growth_tracker, 0), xp.where(goes_on, peak, xp.float32(0)))

    def _largest(self, xp: ModuleType, amax: float) -> float:
        """Return the largest power of two S with amax * S <= top / 2^margin, between 2^-126 and 2^126."""
        limit = xp.float32(self.top / 2.0**self.margin)
        ratio = limit / xp.maximum(amax, limit * xp.float32(2.0**-126))
        # A correctly rounded quotient below a power of two stays below it.
        exponent = xp.frexp(xp.maximum(ratio, xp.float32(2.0**-126)))[1] - 1
        return xp.ldexp(xp.float32(1), exponent)  # type: ignore[no-any-return]
