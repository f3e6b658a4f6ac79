"""A small residual convolutional network for images of 8 x 8 (digits) or 32 x 32 pixels.

GroupNorm and not BatchNorm: BatchNorm writes its running mean and variance in the forward pass. A
forward pass that overflows leaves inf there, and skipping the optimizer's step does not take it
back. K. He et al., *Deep Residual Learning for Image Recognition*, CVPR 2016; Y. Wu and K. He,
*Group Normalization*, ECCV 2018.
"""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import relu

GROUPS = 4  # of channels that are normalised together
DIGITS = (16, 32)  # channels a stage: 8 x 8, 4 x 4
IMAGES_32 = (16, 32, 64)  # 32 x 32, 16 x 16, 8 x 8


def convolution(channels_in: int, channels_out: int, stride: int = 1) -> nn.Sequential:
    """Return a 3 x 3 convolution, normalised."""
    conv = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.GroupNorm(GROUPS, channels_out))


class Block(nn.Module):
    """relu(shortcut(x) + F(x)) with two convolutions in F; the shortcut is 1 x 1 where the shape
    changes.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(channels_in, channels_out, stride)
        self.second = convolution(channels_out, channels_out)
        same = stride == 1 and channels_in == channels_out
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels_in, h, w) to (batch, channels_out, h / stride, w / stride)."""
        return relu(self.shortcut(x) + self.second(relu(self.first(x))))


class ResNet(nn.Module):
    """A convolution, one stage of `blocks` blocks for each entry of `channels`, each half as wide,
    and the mean.
    """

    def __init__(
        self, colours: int, channels: tuple[int, ...], blocks: int, classes: int
    ) -> None:
        super().__init__()
        self.enter = convolution(colours, channels[0])
        stages = [Block(channels[0], channels[0], 1)]
        stages += [Block(a, b, 2) for a, b in pairwise(channels)]
        self.blocks = nn.Sequential(
            *(layer for stage, c in zip(stages, channels, strict=True)
              for layer in (stage, *(Block(c, c, 1) for _ in range(blocks - 1))))
        )  # fmt: skip
        self.leave = nn.Linear(channels[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, colours, h, w) to logits (batch, classes)."""
        logits: Tensor = self.leave(
            self.blocks(relu(self.enter(images))).mean(dim=(2, 3))
        )
        return logits
