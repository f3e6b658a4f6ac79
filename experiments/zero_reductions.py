"""How many bits of float16's range does a sum over data-parallel ranks cost in DeepSpeed?

Each rank has equal gradients, and DeepSpeed's own scaler starts at 2^16. The bits lost are the
distance between the scale that it settles at on N ranks and on one. `rank_reductions` says what is
predicted.

DeepSpeed refuses fp16 on a CPU: here its question whether fp16 is supported is answered with yes,
and its reductions are as they are. At stage 0, DeepSpeed 0.19.8 divides by a loss scale by which
`engine.backward` has not multiplied (an open fix: deepspeedai/DeepSpeed#8393), so stage 0
multiplies the loss itself.

Device: cpu, with gloo. `make frameworks` installs DeepSpeed and runs it.
"""

import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import start_processes

from ampsim.core.json_lines import Record
from experiments import rank_reductions, runner
from experiments.rank_reductions import SMOKE as SMOKE
from experiments.rank_reductions import Arm, Config

DEVICES = ("cpu",)
RECOMPUTED = ("ZeRO-0", "ZeRO-1")
REQUIRES = ("deepspeed",)
STEPS = 12  # more than the backoffs from 2^16 to where eight ranks settle
ENGINES: dict[Arm, dict[str, Any]] = {
    Arm("ZeRO-0", "1"): {"stage": 0},
    Arm("ZeRO-0, prescale_gradients", "N"): {"stage": 0, "prescale_gradients": True},
    Arm("ZeRO-1", "N"): {"stage": 1},
    Arm("ZeRO-2", "N"): {"stage": 2},
    Arm("ZeRO-3", "N"): {"stage": 3},
}


def arms(config: Config) -> Mapping[str, Arm]:
    return {arm.name: arm for arm in ENGINES}


def run(
    config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Measure one stage for each number of ranks."""
    return rank_reductions.measured(config, "zero_reductions", arm, tick)


def bits_lost(ranks: int, name: str) -> int:
    """Return how many bits below its value on one rank the scale settles."""
    options = next(options for arm, options in ENGINES.items() if arm.name == name)
    return round(math.log2(settled(1, options) / settled(ranks, options)))


def settled(ranks: int, options: Mapping[str, Any]) -> float:
    """Return the scale at which DeepSpeed's engine settles."""
    with tempfile.TemporaryDirectory() as folder:
        given = (ranks, folder, options)
        start_processes(train, given, ranks, start_method="fork")  # type: ignore[no-untyped-call]
        return float(Path(folder, "scale").read_text())


def train(rank: int, ranks: int, folder: str, options: Mapping[str, Any]) -> None:
    """Train on one rank until the scale stands still, and write it to the folder."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = (
        False  # gloo, without a compiler
    )
    accelerator = type(get_accelerator())
    accelerator.is_fp16_supported = lambda self: True
    accelerator.supported_dtypes = lambda self: [
        torch.float32,
        torch.float16,
        torch.bfloat16,
    ]
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
    for _ in range(STEPS):
        loss = (engine(torch.ones(1, 2, dtype=torch.float16)) * 1.5).sum()
        engine.backward(
            loss.float() * engine.optimizer.loss_scale if stage == 0 else loss
        )
        engine.step()
    if rank == 0:
        Path(folder, "scale").write_text(repr(float(engine.optimizer.loss_scale)))
    dist.barrier()
    os._exit(0)  # an interpreter that ends with gloo's threads alive may abort


if __name__ == "__main__":
    raise SystemExit(runner.main("zero_reductions"))
