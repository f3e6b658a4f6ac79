"""What is trained: a real model, its stream of real batches, and its loss; each in a size for a CPU and one for CUDA.

| task | model | data | loss, mean over |
|---|---|---|---|
| `sigmoid` | 8-layer sigmoid MLP | digits | images |
| `residual` | residual MLP without normalisation | digits | images |
| `resnet` | convolutional residual network | digits | images |
| `gpt` | byte-level GPT | text | tokens |
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments import _digits, _fp16, _text
from experiments.models.gpt import BYTES, GPT, GPT2_SMALL, Size
from experiments.models.residual_mlp import ResidualMLP
from experiments.models.resnet import DIGITS, ResNet
from experiments.models.sigmoid_mlp import SigmoidMLP

GPT_TINY = Size(vocabulary=BYTES, context=32, layers=2, heads=4, width=64)  # 0.1 million parameters
EVALUATED = 8192  # tokens in a final loss

Batch = tuple[Tensor, Tensor]  # what the model reads, and what it should say


@dataclass(frozen=True)
class Task:
    """A model on its device, with its batches."""

    model: nn.Module
    draw: Callable[[], Batch]
    """The next training batch; the stream depends on the seed only."""
    criterion: Callable[[Tensor, Tensor], Tensor]
    """Of the model's output and the targets; a mean."""
    test: Batch

    def loss(self) -> Tensor:
        """Of the next batch; a float32 scalar. The caller chooses the precision with `torch.autocast`."""
        x, y = self.draw()
        return self.criterion(self.model(x), y)

    @torch.no_grad()
    def test_loss(self) -> float:
        """In float32 for every arm, so that arms differ in their training only; 6 significant digits."""
        x, y = self.test
        return _fp16.six_digits([self.criterion(self.model(x), y).item()])[0]


def make(name: str, seed: int, device: str, batch: int) -> Task:
    """A task, with everything seeded: weights and batches are functions of `seed` and `batch`, on the CPU.

    Args:
        name: a row of the table above.
        seed: of weights and batches.
        device: `cpu` or `cuda`; also chooses the size of the model.
        batch: images, or windows of text, a step.
    """
    return MAKERS[name](_fp16.prepare(seed), device, batch)


def digits(model: nn.Module, generator: torch.Generator, device: str, batch: int, *, square: bool = False) -> Task:
    """Classify digits; `square` gives the model images (n, 1, 8, 8) and not rows (n, 64)."""
    data = _digits.load(device)
    train, test = (x.reshape(-1, 1, 8, 8) if square else x for x in (data.train_x, data.test_x))

    def draw() -> Batch:
        rows = torch.randint(_digits.TRAIN, (batch,), generator=generator).to(device)
        return train[rows], data.train_y[rows]

    return Task(model.to(device), draw, cross_entropy, (test, data.test_y))


class Logits(nn.Module):
    """A residual MLP that keeps its stream to itself."""

    def __init__(self, network: ResidualMLP) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs) to logits (batch, classes)."""
        logits: Tensor = self.network(x)[0]
        return logits


def sigmoid(generator: torch.Generator, device: str, batch: int) -> Task:
    """The sizes of `sigmoid_underflow`."""
    return digits(SigmoidMLP(_digits.PIXELS, 32, 8, _digits.CLASSES), generator, device, batch)


def residual(generator: torch.Generator, device: str, batch: int) -> Task:
    """The sizes of `scale_crash`."""
    return digits(Logits(ResidualMLP(_digits.PIXELS, 64, 8, _digits.CLASSES)), generator, device, batch)


def resnet(generator: torch.Generator, device: str, batch: int) -> Task:
    """Two stages of one block each on a CPU; on CUDA four times as wide, with three blocks a stage."""
    on_cpu = device == "cpu"
    channels = DIGITS if on_cpu else tuple(4 * c for c in DIGITS)
    return digits(ResNet(1, channels, 1 if on_cpu else 3, _digits.CLASSES), generator, device, batch, square=True)


def gpt(generator: torch.Generator, device: str, batch: int) -> Task:
    """`GPT_TINY` on a CPU, GPT-2 small on CUDA; bytes are the first 256 entries of its vocabulary."""
    size = GPT_TINY if device == "cpu" else GPT2_SMALL
    text = _text.load(device)
    return Task(
        GPT(size).to(device),
        lambda: _text.draw(text.train, batch, size.context, generator),
        lambda logits, y: cross_entropy(logits.flatten(0, 1), y.flatten()),
        _text.spaced(text.test, EVALUATED // size.context, size.context),
    )


MAKERS: dict[str, Callable[[torch.Generator, str, int], Task]] = {
    "sigmoid": sigmoid,
    "residual": residual,
    "resnet": resnet,
    "gpt": gpt,
}


READS: dict[str, str] = {"gpt": "topics"}  # all others read the digits
HASHES = {"digits": _digits.sha256, "topics": _text.sha256}


def inputs(*names: str) -> dict[str, str]:
    """File -> sha256, of what these tasks read."""
    return {file: HASHES[file]() for file in sorted({READS.get(name, "digits") for name in names})}
