"""A residual network without normalisation: nothing bounds its stream, so a fast optimizer
overflows it.
"""

from torch import Tensor, nn


class ResidualMLP(nn.Module):
    """h <- h + W2 relu(W1 h), `blocks` times, between an input and an output layer.

    The growth of h compounds over the blocks: if each block multiplies it by c, the last one sees
    c^blocks.
    """

    def __init__(self, inputs: int, width: int, blocks: int, classes: int) -> None:
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(blocks)
        )
        self.leave = nn.Linear(width, classes)

    def stream(self, x: Tensor) -> Tensor:
        """Return the last residual stream (batch, width) of x (batch, inputs)."""
        h: Tensor = self.enter(x)
        for block in self.blocks:
            h = h + block(h)
        return h

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, classes) of x (batch, inputs)."""
        logits: Tensor = self.leave(self.stream(x))
        return logits
