"""Six small trainings, step by step, so that devices can be compared at equal weights."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ampsim import Rule, init, update
from experiments.training import fp16
from experiments.training.loop import Step
from experiments.training.tasks import Batch, Task
from experiments.training.what_fp16_did import flat

EPS = 1e-15  # of Adam


class Recipe(NamedTuple):
    """How a model trains."""

    batch: int  # images, crops, or windows of text per step
    lr: float  # of Adam


RECIPES = {
    "sigmoid": Recipe(64, 1e-2),
    "residual": Recipe(16, 1e-3),
    "residual12": Recipe(16, 4e-2),  # crashes with some seeds
    "resnet": Recipe(16, 5e-3),
    "gpt": Recipe(1, 1e-3),
    "vit": Recipe(2, 1e-3),
}
Place = Callable[[], AbstractContextManager[None]]


def train(
    task: Task, lr: float, rule: Rule, steps: int, place: Place = nullcontext
) -> Iterator[Step]:
    """Train in fp16; yields each step between its backward pass and the optimizer.

    Args:
        task: What is trained.
        lr: Learning rate of Adam.
        rule: The loss scale; a step that overflows is skipped.
        steps: Number of steps.
        place: Surrounds the forward and backward passes, to emulate another device.
    """
    parameters = list(task.model.parameters())
    device = parameters[0].device
    optimizer = torch.optim.Adam(parameters, lr=lr, eps=EPS, fused=True)
    state = init(rule)
    for number in range(steps):
        x, y = task.draw()
        batch, scale = (x.to(device), y.to(device)), float(state.scale)
        with place():
            loss, gradient = differentiate(task, batch, scale)
        found_inf = not fp16.all_finite(gradient)
        yield Step(number, loss, scale, gradient, found_inf, batch)
        if not found_inf:
            assign(parameters, gradient / scale)
            optimizer.step()
        state = update(rule, state, found_inf=found_inf)


def differentiate(task: Task, batch: Batch, scale: float) -> tuple[float, Tensor]:
    """Return the loss, and its gradient times `scale` in one vector of float32."""
    x, y = batch
    with fp16.autocast(x.device.type, fp16=True):
        loss = task.criterion(task.model(x), y)
    return loss.item(), flat(
        torch.autograd.grad(loss * scale, list(task.model.parameters()))
    )


def assign(parameters: Sequence[nn.Parameter], gradient: Tensor) -> None:
    """Set each parameter's gradient to its part of one vector."""
    parts = torch.split(gradient, [parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)
