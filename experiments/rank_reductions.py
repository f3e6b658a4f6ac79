"""How many bits of float16's range does a sum over data-parallel ranks cost?

N gloo processes have equal gradients, and a reduction averages them. On one rank, the largest power of
two times 1.5 that float16 holds is 1.5 * 2^15. An arm is one way to reduce; for each N it lowers the
gradient from there by 0, 1, 2, ... bits until the ranks step, which is how far below its value on one
rank the loss scale must settle. `theory.bits_lost_to_ranks` predicts it from the number that divides
each gradient before the sum: 1 for a sum that is divided afterwards, N for a mean of quotients.

DeepSpeed's engine has its own scaler and runs with `--deepspeed` only (`pip install deepspeed==0.19.8`).
It refuses fp16 on a CPU: the arm answers its question whether fp16 is supported with yes, and leaves
its reductions as they are. At stage 0, DeepSpeed 0.19.8 divides by a loss scale by which
`engine.backward` has not multiplied, so these arms multiply the loss themselves.

Device: cpu. It has not been run with nccl.
"""

import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.table import Table
from torch import multiprocessing, nn
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
WAIT = 60.0  # seconds for a collective


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 1  # per number of ranks and bit
    seeds: tuple[int, ...] = (0,)  # nothing is random
    ranks: tuple[int, ...] = (1, 2, 4, 8)
    deepspeed: bool = False  # whether to run DeepSpeed's engine too


SMOKE = Config(ranks=(2,))


@dataclass(frozen=True)
class Arm:
    """A way to average gradients over N ranks."""

    name: str
    predivide: Callable[[int], float]  # of N: what each gradient is divided by before the sum


def ddp(hook: Callable[[Any, Any], Any] | None = None) -> Wrap:
    """Return a wrapper in DistributedDataParallel, with a communication hook."""

    def wrap(model: nn.Module, group: Any) -> nn.Module:
        wrapped = DistributedDataParallel(model, process_group=group)
        if hook is not None:
            wrapped.register_comm_hook(group, hook)
        return wrapped

    return wrap


def sum_first(group: Any, bucket: dist.GradBucket) -> Future:
    """Sum in float16, then divide, as a plain all-reduce of fp16 gradients does."""
    work = dist.all_reduce(bucket.buffer().half(), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0].float() / group.size())


def divide_first(group: Any, bucket: dist.GradBucket) -> Future:
    """Divide in float16, then sum."""
    part = bucket.buffer().half() / group.size()
    work = dist.all_reduce(part, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0].float())


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


def near_root(ranks: int) -> float:
    """Return what FSDP divides by before an fp16 sum: the least power of two whose square is at least N."""
    # torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, _get_gradient_divide_factors
    factor = 1
    while ranks % factor == 0 and ranks / factor > factor:
        factor *= 2
    return float(factor)


def one(_: int) -> float:
    return 1.0


HALF, FULL = torch.float16, torch.float32
REDUCTIONS: dict[Arm, Gradients] = {
    Arm("all-reduce in fp16: sum, divide", one): ddp(sum_first),
    Arm("all-reduce in fp16: divide, sum", float): ddp(divide_first),
    Arm("DDP", float): "DDP",
    Arm("DDP, fp16_compress_hook", float): ddp(default_hooks.fp16_compress_hook),
    Arm("FSDP1, reduced in fp16", near_root): fsdp1(HALF),
    Arm("FSDP1, reduced in fp32", float): fsdp1(FULL),
    Arm("FSDP2, reduced in fp16", near_root): fsdp2(HALF),
    Arm("FSDP2, reduced in fp16, divide factor N", near_root): fsdp2(HALF, divide_by_ranks=True),
    Arm("FSDP2, reduced in fp32", float): fsdp2(FULL),
}
ENGINES: dict[Arm, dict[str, Any]] = {
    Arm("DeepSpeed ZeRO-0", one): {"stage": 0},
    Arm("DeepSpeed ZeRO-0, prescale_gradients", float): {"stage": 0, "prescale_gradients": True},
    Arm("DeepSpeed ZeRO-1", float): {"stage": 1},
    Arm("DeepSpeed ZeRO-2", float): {"stage": 2},
    Arm("DeepSpeed ZeRO-3", float): {"stage": 3},
}


def arms(config: Config) -> Mapping[str, Arm]:
    chosen = [*REDUCTIONS, *(ENGINES if config.deepspeed else ())]
    return {arm.name: arm for arm in chosen}


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Measure one reduction for each number of ranks."""
    rows = []
    for ranks in config.ranks:
        engine = ENGINES.get(arm)
        lost = bits_lost_by_engine(ranks, engine) if engine else bits_lost(ranks, REDUCTIONS[arm])
        predicted = theory.bits_lost_to_ranks(ranks, arm.predivide(ranks))
        rows.append({"ranks": ranks, "bits_lost": lost, "predicted": predicted})
    tick(config.steps)
    return {"measured": rows}


def make(group: Any) -> GradScaler:
    return GradScaler("cpu", 1024.0, group=group)


def bits_lost(ranks: int, gradients: Gradients) -> int:
    """Return by how many bits the gradient must be below its largest value until all ranks step."""
    for bits in range(ranks.bit_length() + 1):
        scenario = Scenario((NONE,), equal=LARGE / 2**bits)
        records = play_all(make, [scenario], ranks, gradients, WAIT)[scenario]
        if failed := [record.error or record.waits for record in records if not record.seen]:
            raise RuntimeError(f"a rank did not end its iteration: {failed[0]}")
        if all(moved is not False for record in records for moved in record.seen[0].moved):
            return bits
    raise RuntimeError(f"no step with a gradient of {scenario.equal}")


def bits_lost_by_engine(ranks: int, options: Mapping[str, Any]) -> int:
    """Return how many bits below its value on one rank the scale of DeepSpeed's engine settles."""
    with tempfile.TemporaryDirectory() as folder:
        given = (ranks, folder, options)
        multiprocessing.start_processes(settle, given, ranks, start_method="fork")
        settled = float(Path(folder, "scale").read_text())
    return round(math.log2(LARGE / 1.5 / settled))


def settle(rank: int, ranks: int, folder: str, options: Mapping[str, Any]) -> None:
    """Train on one rank until the scale stands still, and write it to the folder."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo, without a compiler
    accelerator = type(get_accelerator())
    accelerator.is_fp16_supported = lambda self: True
    accelerator.supported_dtypes = lambda self: [torch.float32, torch.float16, torch.bfloat16]
    torch.set_num_threads(1)
    place = Path(folder, "store").as_uri()
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=ranks)
    model = nn.Linear(2, 2, bias=False, dtype=torch.float16)
    stage = options["stage"]
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "fp16": {"enabled": True, "initial_scale_power": 16, "hysteresis": 1},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "prescale_gradients": options.get("prescale_gradients", False),
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = deepspeed.initialize(
        dist_init_required=False, model=model, optimizer=optimizer, config=config
    )
    for _ in range(2 * ranks.bit_length() + 2):
        loss = (engine(torch.ones(1, 2, dtype=torch.float16)) * 1.5).sum()
        engine.backward(loss.float() * engine.optimizer.loss_scale if stage == 0 else loss)
        engine.step()
    if rank == 0:
        Path(folder, "scale").write_text(repr(float(engine.optimizer.loss_scale)))
    dist.barrier()
    os._exit(0)  # an interpreter that ends with gloo's threads alive may abort


def table(rows: Sequence[Record]) -> Table:
    """Return the bits lost, a column per number of ranks."""
    ranks = [row["ranks"] for row in rows[0]["measured"]]
    shown = Table("reduction", *(f"N = {n}" for n in ranks), title="Bits lost on N ranks")
    for row in rows:
        cells = [
            f"{each['bits_lost']}"
            + (
                f" (predicted {each['predicted']:g})"
                if each["bits_lost"] != each["predicted"]
                else ""
            )
            for each in row["measured"]
        ]
        shown.add_row(row["arm"], *cells)
    return shown


if __name__ == "__main__":
    raise SystemExit(runner.main("rank_reductions"))
