"""What is trained: a real model, its stream of real batches, and its loss; each in a size for a CPU
and one for CUDA.

| task | model | data | loss |
|---|---|---|---|
| `sigmoid` | 8-layer sigmoid MLP | digits | cross entropy, mean over images |
| `residual` | residual MLP without normalisation, 8 blocks | digits | the same |
| `residual12` | the same with 12 blocks, which crashes if it learns too fast | digits | the same |
| `resnet` | convolutional residual network | digits | the same |
| `resnet32` | convolutional residual network | crops of photographs: which way up? | the same |
| `gpt` | byte-level GPT | text | cross entropy, mean over tokens |
| `vit` | vision transformer | crops of photographs, half hidden | squared error, *summed* over values and crops |
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, mse_loss

from experiments.models.gpt import BYTES, GPT, GPT2_SMALL, Size
from experiments.models.residual_mlp import ResidualMLP
from experiments.models.resnet import DIGITS, IMAGES_32, ResNet
from experiments.models.sigmoid_mlp import SigmoidMLP
from experiments.models.vit import VIT_SMALL, ViT
from experiments.models.vit import Size as ViTSize
from experiments.training import digits_data, fp16, photos_data, series, text_data

GPT_TINY = Size(
    vocabulary=BYTES, context=32, layers=2, heads=4, width=64
)  # 0.1 million parameters
VIT_TINY = ViTSize(
    pixels=32, patch=8, layers=2, heads=4, width=64
)  # 0.1 million parameters
TURNS = 4  # ways up
EVALUATED = 8192  # tokens in a final loss
CROPS = 128  # crops in a final loss

Batch = tuple[Tensor, Tensor]  # what the model reads, and what it should say


@dataclass(frozen=True)
class Task:
    """A model on its device, with its batches."""

    model: nn.Module
    draw: Callable[[], Batch]
    """The next training batch; the stream depends on the seed only."""
    criterion: Callable[[Tensor, Tensor], Tensor]
    """Of the model's output and the targets, as in the table above."""
    test: Batch

    def loss(self) -> Tensor:
        """Return the loss of the next batch, a float32 scalar. The caller chooses the precision by
        autocast.
        """
        x, y = self.draw()
        return self.criterion(self.model(x), y)

    def test_loss(self) -> float:
        """Return the loss on the test data, in float32 for every arm, so that arms differ in their
        training only.
        """
        return self.evaluate(self.test)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> float:
        """Return the loss of a batch in float32, 6 significant digits."""
        x, y = batch
        return series.six_digits([self.criterion(self.model(x), y).item()])[0]


def make(name: str, seed: int, device: str, batch: int) -> Task:
    """Return a task, with everything seeded: weights and batches are functions of `seed` and
    `batch`, on the CPU.

    Args:
        name: a row of the table above.
        seed: of weights and batches.
        device: `cpu` or `cuda`; also chooses the size of the model.
        batch: images, crops, or windows of text, per step.
    """
    return MAKERS[name](fp16.prepare(seed), device, batch)


def digits(
    model: nn.Module,
    generator: torch.Generator,
    device: str,
    batch: int,
    *,
    square: bool = False,
) -> Task:
    """Classify digits; `square` gives the model images (n, 1, 8, 8) and not rows (n, 64)."""
    data = digits_data.load(device)
    train, test = (
        x.reshape(-1, 1, 8, 8) if square else x for x in (data.train_x, data.test_x)
    )

    def draw() -> Batch:
        rows = torch.randint(digits_data.TRAIN, (batch,), generator=generator).to(
            device
        )
        return train[rows], data.train_y[rows]

    return Task(model.to(device), draw, cross_entropy, (test, data.test_y))


def sigmoid(
    generator: torch.Generator,
    device: str,
    batch: int,
    *,
    depth: int = 8,
    width: int = 32,
) -> Task:
    """Return a deep sigmoid network's task; its first layers' gradients lie below fp16's smallest
    number.
    """
    return digits(
        SigmoidMLP(digits_data.PIXELS, width, depth, digits_data.CLASSES),
        generator,
        device,
        batch,
    )


def residual(
    generator: torch.Generator,
    device: str,
    batch: int,
    *,
    blocks: int = 8,
    width: int = 64,
) -> Task:
    """Return a residual network's task, without normalisation; with 12 blocks it is that of
    `scale_crash`.
    """
    return digits(
        ResidualMLP(digits_data.PIXELS, width, blocks, digits_data.CLASSES),
        generator,
        device,
        batch,
    )


def resnet(generator: torch.Generator, device: str, batch: int) -> Task:
    """Return two stages of a block each on a CPU, half as wide as `DIGITS`; on CUDA 4 times, 3
    blocks per stage.
    """
    fp16.use_onednn(on=False)
    channels, blocks = (
        ((8, 16), 1) if device == "cpu" else (tuple(4 * c for c in DIGITS), 3)
    )
    return digits(
        ResNet(1, channels, blocks, digits_data.CLASSES),
        generator,
        device,
        batch,
        square=True,
    )


def gpt(generator: torch.Generator, device: str, batch: int) -> Task:
    """Return `GPT_TINY` on a CPU, GPT-2 small on CUDA; bytes are the first 256 entries of its
    vocabulary.
    """
    return text(GPT_TINY if device == "cpu" else GPT2_SMALL, generator, device, batch)


def text(size: Size, generator: torch.Generator, device: str, batch: int) -> Task:
    """Return the task of predicting each next byte with a GPT."""
    train, test = text_data.load(device)
    return Task(
        GPT(size).to(device),
        lambda: text_data.draw(train, batch, size.context, generator),
        lambda logits, y: cross_entropy(logits.flatten(0, 1), y.flatten()),
        text_sample(test, size.context),
    )


def text_sample(tokens: Tensor, context: int) -> Batch:
    """Return the windows, from all over some text, on which a loss is measured."""
    return text_data.spaced(tokens, EVALUATED // context, context)


def resnet32(generator: torch.Generator, device: str, batch: int) -> Task:
    """Return three stages of a block each on a CPU, half as wide as `IMAGES_32`; on CUDA 4 times, 3
    blocks per stage.

    How far a crop was turned, in quarters: S. Gidaris et al., *Unsupervised Representation Learning
    by Predicting Image Rotations*, ICLR 2018.
    """
    fp16.use_onednn(on=False)
    widths, blocks = (
        (tuple(c // 2 for c in IMAGES_32), 1)
        if device == "cpu"
        else (tuple(4 * c for c in IMAGES_32), 3)
    )
    photos = photos_data.load(device)

    def turned(crops: Tensor, quarters: Tensor) -> Batch:
        ways = torch.stack([crops.rot90(k, (2, 3)) for k in range(TURNS)])
        return ways[quarters, torch.arange(len(crops))], quarters.to(device)

    def draw() -> Batch:
        crops = photos_data.draw(photos.train, batch, 32, generator)
        return turned(crops, torch.randint(TURNS, (batch,), generator=generator))

    test = turned(
        photos_data.spaced(photos.test, CROPS, 32), torch.arange(CROPS) % TURNS
    )
    return Task(ResNet(3, widths, blocks, TURNS).to(device), draw, cross_entropy, test)


def vit(generator: torch.Generator, device: str, batch: int) -> Task:
    """Return `VIT_TINY` on a CPU, `VIT_SMALL` on CUDA: fill in the patches, on average half of
    them, that are hidden.

    The loss is a sum, as reconstruction losses often are. So its gradients are some 2^16 times
    those of a mean (2^15.6 at 16 crops), and in fp16 they overflow at the loss scale that scalers
    start from.
    """
    size = VIT_TINY if device == "cpu" else VIT_SMALL
    photos = photos_data.load(device)

    def hidden(crops: Tensor, chance: torch.Generator) -> Batch:
        side = size.pixels // size.patch
        keep = (
            (torch.rand(len(crops), 1, side, side, generator=chance) < 0.5)
            .float()
            .to(device)
        )
        whole = 4 * (crops - 0.5)  # pixels of about unit variance
        return whole * interpolate(keep, scale_factor=float(size.patch)), whole

    def draw() -> Batch:
        return hidden(
            photos_data.draw(photos.train, batch, size.pixels, generator), generator
        )

    test = hidden(
        photos_data.spaced(photos.test, CROPS, size.pixels),
        torch.Generator().manual_seed(0),
    )
    return Task(ViT(size).to(device), draw, partial(mse_loss, reduction="sum"), test)


MAKERS: dict[str, Callable[[torch.Generator, str, int], Task]] = {
    "sigmoid": sigmoid,
    "residual": residual,
    "residual12": partial(residual, blocks=12),
    "resnet": resnet,
    "resnet32": resnet32,
    "gpt": gpt,
    "vit": vit,
}


READS: dict[str, str] = {
    "gpt": "topics",
    "resnet32": "photos",
    "vit": "photos",
}  # all others read the digits
FILES = {
    "digits": digits_data.FILE,
    "topics": text_data.FILE,
    "photos": photos_data.FILE,
}


def inputs(*names: str) -> dict[str, str]:
    """Return file -> sha256 of what these tasks read."""
    return {
        file: hashlib.sha256(FILES[file].read_bytes()).hexdigest()
        for file in sorted({READS.get(name, "digits") for name in names})
    }
