"""How many bits of float16's range does a sum over data-parallel ranks cost?

N gloo processes have equal gradients, and a reduction averages them. On one rank, the largest power
of two times 1.5 that float16 holds is 1.5 * 2^15. An arm is one way to reduce; for each N it lowers
the gradient from there by 0, 1, 2, ... bits until the ranks step, which is how far below its value
on one rank the loss scale must settle. `theory.bits_lost_to_ranks` predicts it from the number that
divides each gradient before the sum: 1 for a sum that is divided afterwards, N for a mean of
quotients.

`zero_reductions` asks the same of DeepSpeed. Device: cpu. It has not been run with nccl.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.nn.parallel import DistributedDataParallel

from ampsim.core import theory
from ampsim.core.json_lines import Record
from ampsim.testing.ranks.gradients import Gradients, Wrap
from ampsim.testing.ranks.processes import play_all
from ampsim.testing.ranks.scenario import LARGE, NONE, Scenario
from ampsim.torch import GradScaler
from experiments import runner

Future = torch.futures.Future[torch.Tensor]
DEVICES = ("cpu",)
RECOMPUTED = (
    "all-reduce in fp16: sum, divide",
    "all-reduce in fp16: divide, sum",
    "FSDP2, reduced in fp16",
)
ROOT = Path(__file__).parents[1]
WAIT = 60.0  # seconds for a collective


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 1  # per number of ranks and bit
    seeds: tuple[int, ...] = (0,)  # nothing is random
    ranks: tuple[int, ...] = (2, 4, 8)


SMOKE = Config(ranks=(2,))


@dataclass(frozen=True)
class Arm:
    """A way to average gradients over N ranks."""

    name: str
    predivide: (
        str  # what each gradient is divided by before the sum: a name in PREDIVIDE
    )


def near_root(ranks: int) -> float:
    """Return what FSDP divides by before an fp16 sum: the least power of two whose square is at
    least N.
    """
    # torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, _get_gradient_divide_factors
    factor = 1
    while ranks % factor == 0 and ranks / factor > factor:
        factor *= 2
    return float(factor)


PREDIVIDE: dict[str, Callable[[int], float]] = {
    "1": lambda ranks: 1.0,
    "sqrt N": near_root,
    "N": float,
}


def ddp(hook: Callable[[Any, Any], Any] | None = None) -> Wrap:
    """Return a wrapper in DistributedDataParallel, with a communication hook."""

    def wrap(model: nn.Module, group: Any) -> nn.Module:
        wrapped = DistributedDataParallel(model, process_group=group)
        if hook is not None:
            wrapped.register_comm_hook(group, hook)
        return wrapped

    return wrap


def sum_first(group: Any, bucket: dist.GradBucket) -> Future:  # type: ignore[name-defined]
    """Sum in float16, then divide, as a plain all-reduce of fp16 gradients does."""
    work: Any = dist.all_reduce(bucket.buffer().half(), group=group, async_op=True)
    summed: Future = work.get_future()
    return summed.then(lambda done: done.value()[0].float() / group.size())


def divide_first(group: Any, bucket: dist.GradBucket) -> Future:  # type: ignore[name-defined]
    """Divide in float16, then sum."""
    part = bucket.buffer().half() / group.size()
    work: Any = dist.all_reduce(part, group=group, async_op=True)
    summed: Future = work.get_future()
    return summed.then(lambda done: done.value()[0].float())


def fsdp1(reduced: torch.dtype) -> Wrap:
    """Return a wrapper in FullyShardedDataParallel."""
    precision = MixedPrecision(param_dtype=torch.float16, reduce_dtype=reduced)

    def wrap(model: nn.Module, group: Any) -> nn.Module:
        return FullyShardedDataParallel(
            model,
            process_group=group,
            mixed_precision=precision,
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )

    return wrap


def fsdp2(reduced: torch.dtype, divide_by_ranks: bool = False) -> Wrap:
    """Return a wrapper in fully_shard, which may also set its gradient divide factor to N."""
    policy = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=reduced)

    def wrap(model: nn.Module, group: Any) -> nn.Module:
        mesh = init_device_mesh("cpu", (group.size(),))
        sharded: Any = fully_shard(model, mesh=mesh, mp_policy=policy)
        if divide_by_ranks:
            sharded.set_gradient_divide_factor(float(group.size()))
        return model

    return wrap


HALF, FULL = torch.float16, torch.float32
REDUCTIONS: dict[Arm, Gradients] = {
    Arm("all-reduce in fp16: sum, divide", "1"): ddp(sum_first),
    Arm("all-reduce in fp16: divide, sum", "N"): ddp(divide_first),
    Arm("DDP", "N"): "DDP",
    Arm("DDP, fp16_compress_hook", "N"): ddp(default_hooks.fp16_compress_hook),
    Arm("FSDP1, reduced in fp16", "sqrt N"): fsdp1(HALF),
    Arm("FSDP1, reduced in fp32", "N"): fsdp1(FULL),
    Arm("FSDP2, reduced in fp16", "sqrt N"): fsdp2(HALF),
    Arm("FSDP2, reduced in fp16, divide factor N", "sqrt N"): fsdp2(
        HALF, divide_by_ranks=True
    ),
    Arm("FSDP2, reduced in fp32", "N"): fsdp2(FULL),
}


def arms(config: Config) -> Mapping[str, Arm]:
    return {arm.name: arm for arm in REDUCTIONS}


def run(
    config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Measure one reduction for each number of ranks."""
    return measured(config, "rank_reductions", arm, tick)


def measured(
    config: Config, stem: str, arm: Arm, tick: Callable[[int], None]
) -> Record:
    """Return the bits lost for each number of ranks, by the experiment's `bits_lost`, and the
    prediction.
    """
    code = f"from experiments import {stem} as it; print([it.bits_lost(n, {arm.name!r}) for n in {config.ranks}])"
    command = [
        sys.executable,
        "-c",
        code,
    ]  # a worker process may not start the ranks itself
    ended = subprocess.run(  # noqa: S603
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(ended.stdout.splitlines()[-1])
    rows = [
        {"ranks": ranks, "bits_lost": lost, "predicted": predicted(arm, ranks)}
        for ranks, lost in zip(config.ranks, found, strict=True)
    ]
    tick(config.steps)
    return {"measured": rows}


def predicted(arm: Arm, ranks: int) -> float:
    return theory.bits_lost_to_ranks(ranks, PREDIVIDE[arm.predivide](ranks))


def make(group: Any) -> GradScaler:
    return GradScaler("cpu", 1024.0, group=group)


def bits_lost(ranks: int, name: str) -> int:
    """Return by how many bits the gradient must be below its largest value until all ranks step."""
    gradients = next(made for arm, made in REDUCTIONS.items() if arm.name == name)
    for bits in range(ranks.bit_length() + 1):
        scenario = Scenario((NONE,), equal=LARGE / 2**bits)
        records = play_all(make, [scenario], ranks, gradients, WAIT)[scenario]
        if failed := [
            record.error or record.waits for record in records if not record.seen
        ]:
            raise RuntimeError(f"a rank did not end its iteration: {failed[0]}")
        if all(
            moved is not False for record in records for moved in record.seen[0].moved
        ):
            return bits
    raise RuntimeError(f"no step with a gradient of {scenario.equal}")


if __name__ == "__main__":
    raise SystemExit(runner.main("rank_reductions"))
