"""Text: the first 256 KiB of what Python 3.11.7 says about its own language, so that nothing is
downloaded.

`pydoc_data.topics` changes from one release of Python to the next; the copy does not.
"""

import gzip
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

FILE = Path(__file__).parent.parent / "inputs" / "topics.txt.gz"

TRAIN = 7 << 15  # bytes; seven eighths


class Text(NamedTuple):
    """Bytes as tokens, (n,) int64, on one device; train comes first in the file."""

    train: Tensor
    test: Tensor


def load(device: str) -> Text:
    """Return the text, split in the same way for every seed: seeds differ in weights and batches
    only.
    """
    tokens = (
        torch.frombuffer(
            bytearray(gzip.decompress(FILE.read_bytes())), dtype=torch.uint8
        )
        .long()
        .to(device)
    )
    return Text(tokens[:TRAIN], tokens[TRAIN:])


def windows(tokens: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Return what a model reads and what it should say, (len(starts), context) each, the second one
    byte further on.
    """
    places = starts[:, None] + torch.arange(context + 1)
    pieces = tokens[places.to(tokens.device)]
    return pieces[:, :-1], pieces[:, 1:]


def draw(
    tokens: Tensor, batch: int, context: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return a random batch of `windows`."""
    return windows(
        tokens,
        torch.randint(len(tokens) - context, (batch,), generator=generator),
        context,
    )


def spaced(tokens: Tensor, count: int, context: int) -> tuple[Tensor, Tensor]:
    """`count` windows at equal distances: the same at every call."""
    return windows(
        tokens,
        torch.arange(count) * (len(tokens) - context - 1) // max(1, count - 1),
        context,
    )
