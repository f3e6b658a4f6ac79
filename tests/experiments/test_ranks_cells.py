"""What two ranks do, cell by cell."""

import pytest

from experiments.ranks_cells import Seen
from figures import derived_numbers as q


def rank(**changes: object) -> dict[str, object]:
    return {**Seen("", "", True, True, 1.0, 1024.0)._asdict(), **changes}


@pytest.mark.parametrize(
    ("second", "overflow", "outcome"),
    [
        ({}, False, "right"),
        ({}, True, "wrong"),
        ({"moved": False, "scale": 512.0}, True, "parted"),
        ({"finite": False}, True, "infinite"),
        ({"raised": "step"}, False, "raised"),
        ({"raised": "step", "finite": False}, True, "raised infinite"),
    ],
)
def test_outcome_is_of_worst_rank(
    second: dict[str, object], overflow: bool, outcome: str
) -> None:
    assert q.rank_outcome([rank(), rank(**second)], overflow=overflow) == outcome
