"""The loss-scale policies that are compared, by name, and what is counted of each."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ampsim import Rule
from ampsim.core.policies import Deduplicated, FloorSchedule, Headroom, LogMax, Policy, Probe, Ratio
from experiments.training.series import six_digits

START = (
    2.0**20
)  # within a bit of either network's threshold, so that no climb is measured; LogMax starts at 1


def policies(milestones: Sequence[tuple[int, float]]) -> dict[str, Rule | Policy]:
    """Return the policies; `milestones` are (step, least scale) of the floor schedule."""
    return {
        # Zhao et al. 2019 (arXiv:1910.12385) compared with an interval of 10
        **{
            f"backoff G={interval}": Rule(START, growth_interval=interval)
            for interval in (10, 50, 200, 2000)
        },
        "backoff G=50 k=2": Rule(START, growth_interval=50, delay=2),
        "deduplicated G=50 k=2": Deduplicated(init_scale=START, growth_interval=50, delay=2),
        "probe G=50": Probe(init_scale=START, growth_interval=50),
        "probe G=50 k=2": Probe(init_scale=START, growth_interval=50, delay=2),
        "floor schedule G=2000": FloorSchedule(
            init_scale=START, growth_interval=2000, milestones=tuple(milestones)
        ),
        "ratio G=1000": Ratio(init_scale=START),
        "headroom 1 bit": Headroom(init_scale=START, margin=1),
        "headroom 3 bits": Headroom(init_scale=START, margin=3),
        "LogMax": LogMax(),
        "LogMax as published": LogMax(faithful=True),
    }


def worst_burst(bad: NDArray[np.bool_]) -> int:
    """Return the length of the longest run of overflows."""
    return max(map(len, "".join(" x"[flag] for flag in bad.tolist()).split()), default=0)


def three_decimals(values: Sequence[float] | NDArray[np.float64]) -> list[float]:
    """Round bits to three decimals."""
    return [round(float(value), 3) for value in values]


def mean_and_deviation(
    values: Sequence[float] | NDArray[np.float64],
    rounded: Callable[[list[float]], list[float]] = six_digits,
) -> list[float] | None:
    """Return mean and standard deviation, or None where there are no values."""
    return rounded([float(np.mean(values)), float(np.std(values))]) if len(values) else None
