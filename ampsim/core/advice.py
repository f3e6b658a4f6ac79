"""Settings of a loss scaler for a run, from the theorems of `ampsim.core.theory`.

>>> from ampsim.core.advice import advise
>>> rule = advise(steps=100_000, bad_rate=0.001)
>>> rule.growth_interval, rule.hysteresis
(346, 2)
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ampsim.core.machine import Rule
from ampsim.core.theory import bits_lost_to_ranks
from ampsim.core.validation import as_float, as_int

LONGEST = 2000  # growth interval: torch's default
SHORTEST = 50  # one that skips 2 % of the steps (T2)
UNKNOWN = 2.0**24  # initial scale of a run whose thresholds nobody knows


def advise(
    steps: int,
    bad_rate: float = 0.0,
    summed_ranks: int = 1,
    *,
    threshold: float = UNKNOWN,
    lowest: float = 1.0,
) -> Rule:
    """Return a rule for a run.

    Args:
        steps: Optimizer steps of the run, at least 1.
        bad_rate: Share of the steps that overflow at every scale, in [0, 0.5): NaN batches,
            overflows in the forward pass.
        summed_ranks: Ranks whose fp16 gradients are summed before the sum is divided; 1 if each is
            divided first.
        threshold: Overflow threshold at the start of the run on one rank; by default 2^24, above
            most.
        lowest: Lowest overflow threshold of any step that is not bad, on one rank.

    Returns:
        Rule: With `init_scale`, `growth_interval`, and `hysteresis` set, with bad steps also
            `min_scale`, otherwise as torch's scaler.

    Raises:
        ValueError: If an argument is out of range.
    """
    as_int("steps", steps, 1, "pass the number of optimizer steps")
    as_int("summed_ranks", summed_ranks, 1, "for one rank pass 1")
    if not 0 <= as_float("bad_rate", bad_rate) < 0.5:
        raise ValueError(
            f"bad_rate={bad_rate!r}: expected a share in [0, 0.5); fix the bad steps, no settings can"
        )
    # T4: from 5,000 steps on, a drop of ten bits is made up for within a tenth of the run.
    interval = min(max(steps // 100, SHORTEST), LONGEST)
    if bad_rate:
        # T8: bad steps stay below half the critical rate, at which they drive the scale to its
        # minimum.
        interval = max(1, int(min(interval, math.log(0.5) / math.log1p(-2 * bad_rate))))
    # T4: a start that is too high costs one skip per bit; one that is too low costs a growth
    # interval per bit.
    lost = bits_lost_to_ranks(summed_ranks)
    init_scale = 2.0 ** math.ceil(math.log2(threshold) - lost)
    # T8: bad steps cannot push the scale below one at which no other step overflows. Without them
    # a minimum could only skip each step, if later gradients are larger.
    min_scale = 2.0 ** math.floor(math.log2(min(lowest, threshold)) - lost)
    # T10: with two, a bad step alone does not lower the scale; without bad steps, the second only
    # costs a skip.
    return Rule(
        init_scale,
        growth_interval=interval,
        min_scale=min_scale if bad_rate else None,
        hysteresis=2 if bad_rate else 1,
    )


class Measured(NamedTuple):
    """What a recorded run says about its settings; see `advise`."""

    bad_rate: float
    threshold: float
    lowest: float


def measure(thresholds: npt.ArrayLike) -> Measured:
    """Return the arguments of `advise` for a run like a recorded one.

    Args:
        thresholds: Overflow thresholds in order, of shape ``(steps,)``. A step below 1 or
            NaN counts as bad.

    Returns:
        Measured: The share of bad steps, the median threshold of the first 100 other steps, and the
            lowest of them all.

    Raises:
        ValueError: If every step is bad.
    """
    values = np.asarray(thresholds, dtype=np.float64)
    usable = values[(values >= 1) & np.isfinite(values)]
    if not usable.size:
        raise ValueError(
            "thresholds: expected some in [1, inf); no scale fits this run into fp16"
        )
    return Measured(
        float(np.mean(~(values >= 1))),
        float(np.median(usable[:100])),
        float(usable.min()),
    )
