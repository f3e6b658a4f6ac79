"""Natural images: the two photographs that scikit-learn ships, at a third of their size, so nothing
is downloaded.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

FILE = Path(__file__).parent.parent / "inputs" / "photos.npz"

# columns; three quarters. What is right of them is for tests, so that no pixel is in both
TRAIN = 160


class Photos(NamedTuple):
    """Parts of the photographs, (2, 3, rows, columns) float32 in [0, 1], on one device."""

    train: Tensor
    test: Tensor


def load(device: str) -> Photos:
    """Return the photographs, split in the same way for every seed: seeds differ in weights and
    crops only.
    """
    with np.load(FILE) as file:
        pixels = torch.from_numpy(np.stack([file["china"], file["flower"]])).to(device)
    whole = pixels.permute(0, 3, 1, 2) / 255
    return Photos(whole[..., :TRAIN], whole[..., TRAIN:])


def crops(part: Tensor, places: Tensor, size: int) -> Tensor:
    """Return squares of `part`, (len(places), 3, size, size), each at one of its `count` places.

    Args:
        part: (photos, 3, rows, columns).
        places: (n,) int64 in [0, count(part, size)), on the CPU; row by row, and photo by photo.
        size: pixels a side.
    """
    windows = part.unfold(2, size, 1).unfold(
        3, size, 1
    )  # (photos, 3, places down, places across, size, size)
    photo, down, across = np.unravel_index(
        places.numpy(), (len(part), *windows.shape[2:4])
    )
    return windows[photo, :, down, across]


def count(part: Tensor, size: int) -> int:
    """Return the number of different crops."""
    photos, _, rows, columns = part.shape
    return photos * (rows - size + 1) * (columns - size + 1)


def draw(part: Tensor, batch: int, size: int, generator: torch.Generator) -> Tensor:
    """Return a random batch of `crops`."""
    return crops(
        part, torch.randint(count(part, size), (batch,), generator=generator), size
    )


def spaced(part: Tensor, batch: int, size: int) -> Tensor:
    """Return `batch` crops from all over the part: the same at every call."""
    return crops(
        part, torch.arange(batch) * (count(part, size) - 1) // max(1, batch - 1), size
    )
