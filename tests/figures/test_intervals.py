"""Wilson's score interval of a share, at 95 %, against numbers that were computed by hand."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from figures.derived_numbers import wilson

Z2 = 3.841459  # 1.959964 squared


@pytest.mark.parametrize(
    ("found", "asked", "low", "high"),
    [
        (0, 0, 0.0, 1.0),
        (0, 10, 0.0, 0.277533),  # Z2 / (10 + Z2)
        (10, 10, 0.722467, 1.0),
        (5, 10, 0.236593, 0.763407),
        (1, 1, 0.206549, 1.0),  # 1 / (1 + Z2)
    ],
)
def test_the_interval_of_a_share(
    found: int, asked: int, low: float, high: float
) -> None:
    assert wilson(found, asked) == pytest.approx((low, high), abs=1e-5)


@given(st.integers(1, 10**6), st.floats(0.0, 1.0))
@example(10, 0.0)
@example(10, 1.0)
def test_an_end_is_z_deviations_away(asked: int, part: float) -> None:
    # The ends p solve (share - p)^2 = z^2 p (1 - p) / n.
    share = round(part * asked) / asked
    for end in wilson(round(part * asked), asked):
        assert (share - end) ** 2 == pytest.approx(
            Z2 * end * (1 - end) / asked, rel=1e-5, abs=1e-12
        )
    low, high = wilson(round(part * asked), asked)
    assert low < high
