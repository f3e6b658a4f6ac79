"""A vision transformer that fills in images: patches become tokens, and every token says what its
patch looks like.

A. Dosovitskiy et al., *An Image is Worth 16x16 Words*, ICLR 2021; the linear output a patch is that
of Z. Xie et al., *SimMIM: a Simple Framework for Masked Image Modeling*, CVPR 2022. The blocks are
GPT's without its mask.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from experiments.models import gpt


class Size(NamedTuple):
    """The size of a ViT."""

    pixels: int  # a side of the image
    patch: int  # pixels a side; divides `pixels`
    layers: int
    heads: int
    width: int  # of the residual stream; divisible by `heads`


VIT_SMALL = Size(
    pixels=32, patch=4, layers=12, heads=6, width=384
)  # 21 million parameters


class Block(gpt.Block):
    """A block as in a GPT, but every token sees every other."""

    causal = False


class ViT(nn.Module):
    """Image to image of the same shape."""

    def __init__(self, size: Size, colours: int = 3) -> None:
        super().__init__()
        self.size = size
        values, tokens = colours * size.patch**2, (size.pixels // size.patch) ** 2
        self.patches = nn.Linear(values, size.width)
        self.places = nn.Parameter(torch.empty(tokens, size.width).normal_(std=0.02))
        self.blocks = nn.ModuleList(
            Block(size.heads, size.width) for _ in range(size.layers)
        )
        self.norm = nn.LayerNorm(size.width)
        self.leave = nn.Linear(size.width, values)

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, colours, pixels, pixels) to the same."""
        patches = pixel_unshuffle(
            images, self.size.patch
        )  # (batch, values of a patch, patches down, patches across)
        x = self.patches(patches.flatten(2).transpose(1, 2)) + self.places
        for block in self.blocks:
            x = block(x)
        values = self.leave(self.norm(x)).transpose(1, 2)
        return pixel_shuffle(values.unflatten(2, patches.shape[2:]), self.size.patch)
