"""Scikit-learn's handwritten digits: 1797 images of 8 x 8 pixels, in the wheel, so nothing is downloaded."""

import hashlib
from importlib.resources import files
from typing import NamedTuple

import torch
from torch import Tensor

TRAIN = 1437  # four fifths
CLASSES, PIXELS = 10, 64


class Digits(NamedTuple):
    """Images (n, 64) float32 in [0, 1] and labels (n,) int64, on one device."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def load(device: str) -> Digits:
    """The data set, split in the same way for every seed: seeds differ in weights and batches only."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(bunch.data, dtype=torch.float32)[order] / 16  # pixels are 0 .. 16
    y = torch.tensor(bunch.target, dtype=torch.int64)[order]
    return Digits(*(part.to(device) for part in (x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:])))


def sha256() -> str:
    """Of the file that scikit-learn reads."""
    data = files("sklearn.datasets.data").joinpath("digits.csv.gz").read_bytes()
    return hashlib.sha256(data).hexdigest()
