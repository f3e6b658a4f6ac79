"""The plain network of digits: two hidden layers of ReLU."""

from torch import nn

from experiments.training import digits_data


def make(width: int) -> nn.Sequential:
    """Return the network, (n, 64) -> (n, 10), with `width` units a hidden layer."""
    return nn.Sequential(
        nn.Linear(digits_data.PIXELS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, digits_data.CLASSES),
    )  # fmt: skip
