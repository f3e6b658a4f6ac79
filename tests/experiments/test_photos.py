"""The photographs are scikit-learn's, training and test share no pixel, and crops are pieces of
them.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from experiments.training import photos_data

PHOTOS = photos_data.load("cpu")
CODED = torch.arange(2 * 3 * 9 * 11).reshape(
    2, 3, 9, 11
)  # every value tells where it stands


def test_photo_split_has_expected_shapes() -> None:
    assert PHOTOS.train.shape == (2, 3, 142, 160)
    assert PHOTOS.test.shape == (2, 3, 142, 53)
    for part in PHOTOS:
        assert part.dtype == torch.float32
        assert 0 <= part.min() < 0.1
        assert 0.9 < part.max() <= 1
    again = photos_data.load("cpu")
    assert all(torch.equal(a, b) for a, b in zip(PHOTOS, again, strict=True))


@given(place=st.integers(0, 2 * 7 * 9 - 1))
@settings(deadline=None)
def test_crop_matches_its_place(place: int) -> None:
    assert photos_data.count(CODED, 3) == 2 * 7 * 9
    photo, down, across = place // 63, place // 9 % 7, place % 9
    (crop,) = photos_data.crops(CODED, torch.tensor([place]), 3)
    assert torch.equal(crop, CODED[photo, :, down : down + 3, across : across + 3])


def test_seeded_crops_cover_every_place() -> None:
    def corners(seed: int) -> Tensor:
        return photos_data.draw(CODED, 2000, 3, torch.Generator().manual_seed(seed))[
            :, 0, 0, 0
        ]

    assert len(set(corners(0).tolist())) == photos_data.count(CODED, 3)
    assert torch.equal(corners(1), corners(1))
    assert not torch.equal(corners(1), corners(2))


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_spaced_crops_include_both_ends(batch: int) -> None:
    crops = photos_data.spaced(CODED, batch, 3)
    assert crops.shape == (batch, 3, 3, 3)
    assert torch.equal(crops[0], CODED[0, :, :3, :3])
    if batch > 1:
        assert torch.equal(crops[-1], CODED[1, :, -3:, -3:])
