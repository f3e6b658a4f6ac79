"""What checks generate: rules, overflow sequences, scales, and gradients."""

import math
from functools import cache

from hypothesis import strategies as st

from ampsim.testing.scaler_checks.adapter import Constants, Flags

NONFINITE = (math.inf, -math.inf, math.nan)
FINITE = (False, False, False)
ANY = st.tuples(st.booleans(), st.booleans(), st.booleans())
# Which of three optimizers overflow; often none, so that the scale grows.
FLAGS = st.lists(st.just(FINITE) | ANY, min_size=1, max_size=8)


@cache  # checks that draw alike share their examples, see `ampsim.testing.examples`
def rules(*, growth: bool = True) -> st.SearchStrategy[Constants]:
    """Draw constants that torch accepts, far from the ends of float32 unless they are meant to
    reach the top.

    Args:
        growth: also scales from which growth reaches the top of float32, where scalers differ.
    """
    scales = [2.0**16, 1.0, 1700.0]
    if growth:
        scales += [2.0**100, 2.0**127]
    return st.builds(
        dict,
        init_scale=st.sampled_from(scales),
        growth_factor=st.sampled_from([2.0, 4.0, 1.5, 3.0]),
        backoff_factor=st.sampled_from([0.5, 0.25, 0.7]),
        growth_interval=st.sampled_from([1, 2, 3, 5, 10]),
    )


@cache
def overflow_sequences(*, longest: int = 24) -> st.SearchStrategy[Flags]:
    """Draw found_inf of each update, in runs of equal outcomes: uniform flags hardly ever grow or
    collapse.
    """
    runs = st.lists(
        st.tuples(st.booleans(), st.sampled_from([1, 2, 3, 5])), min_size=1, max_size=8
    )
    return runs.map(
        lambda drawn: [flag for flag, times in drawn for _ in range(times)][:longest]
    )
