"""A deep sigmoid network: gradients shrink layer by layer until fp16 has no number for them."""

from itertools import pairwise

from torch import Tensor, nn


class SigmoidMLP(nn.Module):
    """`depth` linear layers with a sigmoid between them.

    A sigmoid's slope is at most 1/4 and torch's default weights have standard deviation 1/sqrt(3
    n_in), so each layer multiplies the backward signal by about 0.25/sqrt(3), 2.8 bits less. Eight
    layers span some 21 binades before any training; fp16 has 40 in all.
    """

    def __init__(self, inputs: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        sizes = [inputs] + [width] * (depth - 1) + [classes]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs) to logits (batch, classes)."""
        *hidden, last = self.layers
        for layer in hidden:
            x = layer(x).sigmoid()
        logits: Tensor = last(x)
        return logits
