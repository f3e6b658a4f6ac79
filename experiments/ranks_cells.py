"""When gradients overflow on some ranks, which configurations desynchronize, raise, or write inf?

Two gloo processes hold a layer with one weight per output: as `plain` shards, or wrapped in FSDP1,
FSDP2, or DDP. They step SGD or AdamW as a fused kernel, foreach, or for-loop, with and without
`unscale_` before. A label of 64 makes an fp16 gradient of 64 * 1024 = 2^16, which is infinite: on
rank 0, on rank 1, on both, or on none. This is the rank that holds the overflowing part of the
gradient; under DDP, it is the rank whose own batch overflows, because DDP sums before the scaler
reads the gradients. Each cell is one iteration of torch's ShardedGradScaler, and one of ampsim's
with its `group`. A third iteration without a scaler and overflow shows whether the optimizer can
step such parameters.

Device: cpu. It has not been run with nccl.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Annotated, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel

from ampsim.core.json_lines import Record
from ampsim.torch import GradScaler
from experiments import runner
from experiments.training import on_ranks
from experiments.training.on_ranks import RANKS

DEVICES = ("cpu",)
SCALE = 2.0**10
CUTS: dict[str, Callable[[nn.Module], Any]] = {
    "plain": lambda model: model,
    "FSDP1": lambda model: FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), use_orig_params=True
    ),
    "FSDP2": lambda model: fully_shard(model),
    "DDP": lambda model: DistributedDataParallel(model),
}
OPTIMIZERS = ("SGD", "AdamW")
LOOPS = ("fused", "foreach", "for-loop")
WAYS = ("unscale_", "step")  # with and without a call of `unscale_` before the step
OVERFLOWS = {"none": (), "rank 0": (0,), "rank 1": (1,), "both": (0, 1)}
SCALERS: dict[str, Callable[[], Any]] = {
    "torch": lambda: ShardedGradScaler("cpu", SCALE, process_group=dist.group.WORLD),
    "ours": lambda: GradScaler("cpu", SCALE, group="world"),
}


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 1  # per cell
    seeds: tuple[int, ...] = (0,)  # of the weights
    cuts: Annotated[tuple[str, ...], runner.one_of(CUTS)] = tuple(CUTS)
    optimizers: Annotated[tuple[str, ...], runner.one_of(OPTIMIZERS)] = OPTIMIZERS


SMOKE = Config(cuts=("plain",), optimizers=("AdamW",))


@dataclass(frozen=True)
class Cell:
    """One way to train, and where its gradient overflows."""

    cut: str
    optimizer: str
    loop: str
    way: str
    overflow: str
    scaler: str  # none: without one


class Seen(NamedTuple):
    """The sight of one rank after the iteration."""

    raised: str  # the call that did: unscale_, step, update; none
    error: str  # its first line
    moved: bool  # a parameter of this rank was written
    finite: bool  # all of them still are
    counted: float  # steps that the optimizer's state counts; 0 where it counts none
    scale: float


def arms(config: Config) -> Mapping[str, runner.Single]:
    return {"two ranks": runner.Single()}


def cells(config: Config) -> list[Cell]:
    """Return what is tried, in order."""
    trained = list(product(config.cuts, config.optimizers, LOOPS))
    return [
        *(Cell(*each, "step", "none", "none") for each in trained),
        *(
            Cell(*each, way, who, scaler)
            for scaler in SCALERS
            for each in trained
            for way in WAYS
            for who in OVERFLOWS
        ),
    ]


def run(
    config: Config,
    arm: runner.Single,
    seed: int,
    device: str,
    tick: Callable[[int], None],
) -> Record:
    """Return what each of two ranks saw of each cell."""
    tried = cells(config)
    seen = on_ranks.start(iterate_all, (seed, tried))
    tick(config.steps)
    return {
        "cells": [
            {**asdict(cell), "ranks": ranks}
            for cell, *ranks in zip(tried, *seen, strict=True)
        ]
    }


def iterate_all(seed: int, tried: Sequence[Cell]) -> list[Seen]:
    """Do one rank's part of every cell."""
    return [iterate(dist.get_rank(), seed, cell) for cell in tried]


def iterate(rank: int, seed: int, cell: Cell) -> Seen:
    """Train one iteration on this rank."""
    torch.manual_seed(seed)
    model = CUTS[cell.cut](
        nn.Linear(1, 4 if cell.cut == "plain" else 4 * RANKS, bias=False)
    )
    optimizer = getattr(torch.optim, cell.optimizer)(
        model.parameters(),
        lr=0.1,
        fused=cell.loop == "fused",
        foreach=cell.loop == "foreach",
    )
    before = [own(param) for param in model.parameters()]
    loss = (model(torch.ones(1)).half() * labels(rank, cell)).float().sum()
    scaler = SCALERS[cell.scaler]() if cell.scaler != "none" else None
    (scaler.scale(loss) if scaler else loss).backward()
    raised, error = attempt(cell.way, scaler, optimizer)
    after = [own(param) for param in model.parameters()]
    return Seen(
        raised,
        error,
        moved=not all(map(torch.equal, before, after)),
        finite=all(bool(part.isfinite().all()) for part in after),
        counted=max(
            (float(state.get("step", 0)) for state in optimizer.state.values()),
            default=0.0,
        ),
        scale=scaler.get_scale() if scaler else 1.0,
    )


def labels(rank: int, cell: Cell) -> Tensor:
    """Return what the outputs are multiplied by: 1, and 64 where the scaled gradient is to
    overflow.
    """
    each_its_own = cell.cut in ("plain", "DDP")
    found = torch.ones(4 if cell.cut == "plain" else 4 * RANKS, dtype=torch.float16)
    for who in OVERFLOWS[cell.overflow]:
        if not each_its_own or who == rank:
            found[0 if each_its_own else 4 * who] = 64
    return found


def attempt(way: str, scaler: Any, optimizer: torch.optim.Optimizer) -> tuple[str, str]:
    """Step and update; return the call that raised and the first line of its error, both empty if
    none did.
    """
    calls: dict[str, Callable[[], object]] = {"step": optimizer.step}
    if scaler:
        calls = (
            {"unscale_": lambda: scaler.unscale_(optimizer)}
            if way == "unscale_"
            else {}
        )
        calls |= {"step": lambda: scaler.step(optimizer), "update": scaler.update}
    for name, call in calls.items():
        try:
            call()
        except (RuntimeError, NotImplementedError) as error:
            return name, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return "", ""


def own(tensor: Any) -> Tensor:
    """Return a copy of the part of a tensor that this rank has."""
    part = tensor.detach()
    return (part.to_local() if hasattr(part, "to_local") else part).clone()  # type: ignore[no-any-return]


if __name__ == "__main__":
    raise SystemExit(runner.main("ranks_cells"))
