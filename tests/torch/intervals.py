"""Intervals around a formula's exact result that hold whatever float32 makes of it, in torch's kernels and in ours."""

from dataclasses import dataclass

import numpy as np

MAX = float(np.finfo(np.float32).max)
HALF_ULP = 2.0**-24 * (1 + 2.0**-20)  # of a normal result; the last term is float64's own rounding here, and more
LEAST = 2.0**-150 * (1 + 2.0**-20)  # of a subnormal result


@dataclass(frozen=True)
class Interval:
    """Arrays of float64 with a number in float32 between them; that number may be NaN only between -inf and inf.

    Each operation rounds to nearest, which errs by half of the result's last place. What rounds less stays within: a
    fused multiply-add, and a number that is computed in float64 and then rounded.
    """

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def exactly(cls, numbers) -> "Interval":
        return cls(np.float64(numbers), np.float64(numbers))

    @classmethod
    def of(cls, number: float) -> "Interval":
        """Hold a number as float64 has it and as float32 does: torch's kernel for the CPU has some in either."""
        return cls.exactly(number) | cls.exactly(np.float32(number))

    def __or__(self, other) -> "Interval":
        return Interval(np.minimum(self.low, other.low), np.maximum(self.high, other.high))

    def __add__(self, other) -> "Interval":
        return _rounded(self.low + other.low, self.high + other.high)

    def __sub__(self, other) -> "Interval":
        return _rounded(self.low - other.high, self.high - other.low)

    def __mul__(self, other) -> "Interval":
        return _rounded(*(a * b for a in (self.low, self.high) for b in (other.low, other.high)))

    def __truediv__(self, other) -> "Interval":
        divisors = (np.where((other.low <= 0) & (other.high >= 0), np.nan, each) for each in (other.low, other.high))
        return _rounded(*(a / b for b in divisors for a in (self.low, self.high)))

    def __pow__(self, exponent: int) -> "Interval":
        return _rounded(self.low**exponent, self.high**exponent)  # of numbers that are not negative

    def sqrt(self) -> "Interval":
        low = np.where(self.low == -np.inf, np.nan, np.maximum(self.low, 0))  # of none that is negative, but of NaN
        return _rounded(np.sqrt(low), np.sqrt(self.high))

    def holds(self, numbers) -> np.ndarray:
        between = (self.low <= numbers) & (numbers <= self.high)
        return between | ((self.low == -np.inf) & (self.high == np.inf))


def _rounded(*exact: np.ndarray) -> Interval:
    """Return from the least to the largest of some numbers, each rounded; NaN is everything."""
    low, high = np.minimum.reduce(exact), np.maximum.reduce(exact)
    low, high = low - np.abs(low) * HALF_ULP - LEAST, high + np.abs(high) * HALF_ULP + LEAST
    return Interval(np.where(low >= -MAX, low, -np.inf), np.where(high <= MAX, high, np.inf))
