"""Two ranks with gloo, and training in fp16 on them: each has its part of a small GPT's parameters,
cut by hand or by FSDP2.
"""

import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.multiprocessing.spawn import spawn
from torch.nn.utils import vector_to_parameters

from ampsim.core import json_lines
from ampsim.core.json_lines import Record
from ampsim.torch import GradScaler
from experiments.models.gpt import Size
from experiments.training import fp16, series, tasks

RANKS = 2


@dataclass(frozen=True)
class Job:
    """The settings of a run, which every rank is told."""

    seed: int  # of weights and batches
    steps: int
    size: Sequence[int]  # of the GPT
    batch: int  # windows of text per rank and step
    init_scale: float
    growth_interval: int
    # Pairs of a step and a rank, whose part of the gradient has an inf there.
    planted: Sequence[tuple[int, int]]


class ByHand:
    """A model whose parameters, one after the other, are cut into a part per rank: ZeRO in its
    simplest form.

    Every rank also holds the whole model, in which it computes.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.part = nn.Parameter(
            fp16.flat_parameters(model)
            .chunk(dist.get_world_size())[dist.get_rank()]
            .clone()
        )
        self.parameters = [self.part]

    def reduce(self) -> None:
        """Give this rank its part of the mean gradient."""
        self.part.grad = torch.empty_like(self.part)
        dist.reduce_scatter(
            self.part.grad,
            list(fp16.flat_gradient(self.model).chunk(dist.get_world_size())),
        )
        self.part.grad /= dist.get_world_size()
        self.model.zero_grad()

    def gather(self) -> None:
        """Give the model the parameters of all ranks."""
        parts = [torch.empty_like(self.part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.part.detach())
        vector_to_parameters(torch.cat(parts), self.model.parameters())


class FSDP2:
    """A model that does all this itself."""

    def __init__(self, model: nn.Module) -> None:
        for block in model.get_submodule("blocks").children():
            fully_shard(block)
        fully_shard(model)
        self.parameters = list(model.parameters())

    def reduce(self) -> None:
        """Do nothing: the backward pass has."""

    def gather(self) -> None:
        """Do nothing: the forward pass will."""


class Way(NamedTuple):
    """A way from gradients to parameters, apart from the scaler."""

    sharding: type[ByHand | FSDP2]
    unscales: (
        bool  # whether `unscale_` is called before the step, as whoever clips does
    )
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def sgd(*, fused: bool) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """Return what makes an optimizer that divides and skips in its own kernel if it is `fused`."""
    return partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=fused)


WAYS = {
    "unscale_, fused": Way(ByHand, unscales=True, optimizer=sgd(fused=True)),
    "fused": Way(ByHand, unscales=False, optimizer=sgd(fused=True)),
    "unscale_, not fused": Way(ByHand, unscales=True, optimizer=sgd(fused=False)),
    "FSDP2": Way(
        FSDP2, unscales=True, optimizer=partial(torch.optim.AdamW, lr=3e-3, fused=True)
    ),
}
SCALERS = ("torch", "ours")


def start(work: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    """Call a function of a module on two ranks, and return what each of them returned, as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(take_part, (folder, work, arguments), RANKS)  # type: ignore[no-untyped-call]
        texts = [Path(folder, str(rank)).read_text() for rank in range(RANKS)]
    return [json_lines.decode(text)["seen"] for text in texts]


def take_part(
    rank: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Do one rank's part, and write what it returns into the folder."""
    torch.set_num_threads(1)
    # torch's own, of its scaler's flags and of FSDP1's end
    warnings.filterwarnings("ignore")
    store = Path(folder, "store").as_uri()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    text = json_lines.encode({"seen": work(*arguments)})
    Path(folder, str(rank)).write_text(text)
    dist.barrier()
    os._exit(0)  # an interpreter that ends with gloo's threads alive may abort


def train_all(job: Job) -> list[Record]:
    """Train in each way with each scaler, and return what this rank saw."""
    return [train(job, way, scaler) for way in WAYS.values() for scaler in SCALERS]


def train(job: Job, way: Way, scaler: str) -> Record:
    """Return the columns of one run on this rank, as `data/README.md` has them."""
    whole = job.batch * dist.get_world_size()
    task = tasks.text(Size(*job.size), fp16.prepare(job.seed), "cpu", whole)
    model = way.sharding(task.model)
    optimizer = way.optimizer(model.parameters)
    seen = list(
        steps(
            job,
            task,
            model,
            optimizer,
            new_scaler(scaler, way, job),
            unscales=way.unscales,
        )
    )
    return {
        "loss": series.six_digits([step.loss for step in seen]),
        "scale_changes": series.changes([step.scale for step in seen]),
        "skipped": series.flagged([not step.stepped for step in seen]),
        "not_finite": series.flagged([not step.finite for step in seen]),
    }


def new_scaler(name: str, way: Way, job: Job) -> Any:
    """Return ours, or the one of torch's that is meant for this sharding."""
    settings: dict[str, Any] = {
        "init_scale": job.init_scale,
        "growth_interval": job.growth_interval,
    }
    if name == "ours":
        return GradScaler("cpu", **settings, group="world")
    if way.sharding is FSDP2:  # whose gradients share their verdict themselves
        return torch.amp.GradScaler("cpu", **settings)
    return ShardedGradScaler("cpu", **settings, process_group=dist.group.WORLD)


class Seen(NamedTuple):
    """The sight of one rank of one step."""

    loss: float  # on its part of the batch, before scaling
    scale: float  # that the loss was multiplied by
    stepped: bool  # its parameters are not what they were, and NaN never is
    finite: bool  # its parameters are, after the step


def steps(
    job: Job,
    task: tasks.Task,
    model: ByHand | FSDP2,
    optimizer: torch.optim.Optimizer,
    scaler: Any,
    *,
    unscales: bool,
) -> Iterator[Seen]:
    """Train, and yield what this rank sees of each step."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for number in range(job.steps):
        x, y = (each.chunk(ranks)[rank] for each in task.draw())
        with fp16.autocast("cpu", fp16=True):
            loss = task.criterion(task.model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        model.reduce()
        if (number, rank) in job.planted:
            next(own(param.grad for param in model.parameters)).view(-1)[0] = torch.inf
        before, scale = (
            [part.clone() for part in own(model.parameters)],
            scaler.get_scale(),
        )
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        model.gather()
        after = list(own(model.parameters))
        yield Seen(
            loss.item(),
            scale,
            not all(map(torch.equal, before, after)),
            all(map(fp16.all_finite, after)),
        )


def own(tensors: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the part of each tensor that this rank has."""
    for tensor in tensors:
        yield (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach()
