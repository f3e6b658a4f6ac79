"""Gradients by binade, at points of a training run in float32: what `gradient_histogram` measures.

At each point a batch is drawn that is not trained on. `ampsim.probe` counts the gradient of every
parameter and of the output of every module in one backward pass, in float32: what there is, before
any format takes its share.
"""

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from ampsim.probe import GradientRecord, Histogram, Probe
from experiments.models.gpt import GPT
from experiments.training import tasks
from experiments.training.loop import FP32
from experiments.training.tasks import Batch, Task

EMPTY = Histogram.of(torch.zeros(0))
OUTPUT = "output"  # name of the gradient of a GPT's logits


class Case(NamedTuple):
    """A network and the way it is trained."""

    task: str
    batch: int  # images, crops or windows of text a step
    lr: float  # of Adam


CASES = {
    "cpu": {
        "sigmoid": Case("sigmoid", 128, 1e-2),
        "resnet": Case("resnet", 16, 5e-3),
        "gpt": Case("gpt", 8, 1e-3),
        "vit": Case("vit", 16, 1e-3),
    },
    "cuda": {
        "sigmoid": Case("sigmoid", 128, 1e-2),
        "resnet": Case("resnet32", 64, 5e-3),
        "gpt": Case("gpt", 8, 3e-4),
        "vit": Case("vit", 64, 3e-4),
    },
}


@dataclass(frozen=True)
class Model:
    """The model that an arm trains, by its name in `CASES`."""

    name: str


ARMS = {name: Model(name) for name in CASES["cpu"]}

DEPTH = {
    "blocks": 3,
    "layers": 2,
}  # parts of a dotted name that tell the layer; of all others it is the first
PARTS = {
    "tokens": "embedding", "patches": "embedding", "places": "embedding",
    "norm1": "attention", "qkv": "attention", "mix": "attention",
    "norm2": "MLP", "widen": "MLP", "narrow": "MLP",
    "shortcut": "second",
}  # fmt: skip


def layer(name: str) -> str:
    """Return the layer of a parameter or module: `blocks.0.qkv.weight` is in `blocks.0.attention`."""
    parts = name.split(".")
    return ".".join(PARTS.get(part, part) for part in parts[: DEPTH.get(parts[0], 1)])


def inputs(*devices: str) -> dict[str, str]:
    """Return file -> sha256 of what all cases on these devices read."""
    return tasks.inputs(
        *(case.task for device in devices for case in CASES[device].values())
    )


def snapshots(
    arm: str, seed: int, device: str, points: Sequence[int]
) -> Iterator[tuple[int, Task, Batch]]:
    """Train in float32; at each of the points, counted in steps and ascending, yields the task and
    a fresh batch.

    Adam's eps is 1e-15: with the usual 1e-8 it would not move what has the smallest gradients.
    """
    case = CASES[device][arm]
    task = tasks.make(case.task, seed, device, case.batch)
    optimizer = torch.optim.Adam(
        task.model.parameters(), lr=case.lr, eps=1e-15, fused=True
    )
    for before, point in pairwise((0, *points)):
        for _ in FP32.train(task, optimizer, point - before):
            pass
        yield point, task, task.draw()


def probed(task: Task, batch: Batch) -> list[GradientRecord]:
    """Return histograms of the float32 gradient of every parameter and of every module's output,
    one backward pass.

    A GPT's logits are a product with its embedding and no module's output; they have one more row,
    `OUTPUT`. The gradients of the model are cleared before, and left behind.
    """
    x, y = batch
    task.model.zero_grad()
    with Probe(task.model, activations=True) as probe:
        output = task.model(x)
        output.retain_grad()
        task.criterion(output, y).backward()  # type: ignore[no-untyped-call]
        probe.step()
        rows = probe.drain()
    if isinstance(task.model, GPT):
        rows.append(
            GradientRecord(0, "activation", OUTPUT, 1.0, Histogram.of(output.grad))
        )
    return rows


def total(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of all histograms."""
    return functools.reduce(operator.add, histograms, EMPTY)
