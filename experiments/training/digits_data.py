"""Handwritten digits: 1797 images of 8 x 8 pixels, the file that scikit-learn ships, so nothing is
downloaded.
"""

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

FILE = Path(__file__).parent.parent / "inputs" / "digits.csv.gz"

TRAIN = 1437  # four fifths
CLASSES, PIXELS = 10, 64


class Digits(NamedTuple):
    """Images (n, 64) float32 in [0, 1] and labels (n,) int64, on one device."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def load(device: str) -> Digits:
    """Return the data set, split in the same way for every seed: seeds differ in weights and
    batches only.
    """
    table = read()
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(0))
    x, y = table[order, :PIXELS] / 16, table[order, PIXELS].long()  # pixels are 0 .. 16
    return Digits(
        *(part.to(device) for part in (x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:]))
    )


@functools.cache
def read() -> Tensor:
    """Return the file as it is, (1797, 65) float32: 64 pixels, then the label."""
    return torch.from_numpy(np.loadtxt(FILE, delimiter=",", dtype=np.float32))
