"""What does it cost two ranks to agree whether a step is skipped?

Two processes in a gloo group time a step of AdamW, not fused, with its update: torch.amp.GradScaler and ours without a
group, torch's ShardedGradScaler and ours with one. The clock is the wall's, as to agree is to wait; others on the
machine enter, so that the lower quarter of the rounds tells more than their median.

What ranks do when gradients overflow is asked by `ranks_cells`.

Device: cpu. With nccl it has not been run yet.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from ampsim import records
from ampsim.records import Record
from ampsim.torch import GradScaler
from experiments import runner
from experiments.timing import rounds

DEVICES = ("cpu",)
REPEATS = False  # it measures time
RANKS = 2
SCALE = 2.0**10
ROOT = Path(__file__).parents[1]
START = "import sys; from experiments import ranks; ranks.work(*map(int, sys.argv[1:-1]), sys.argv[-1])"


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 200  # rounds; each round times every arm once
    seeds: tuple[int, ...] = (0,)  # of parameters
    tensors: int = 100
    elements: int = 10_000  # per tensor


SMOKE = Config(steps=3, tensors=2, elements=10)


def arms(config: Config) -> Mapping[str, runner.Single]:
    return {"two ranks": runner.Single()}


def run(config: Config, arm: runner.Single, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Start both ranks, and return the times that each of them wrote."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(seed), *map(str, (config.steps, config.tensors, config.elements)), folder]
        commands = [[sys.executable, "-c", START, str(rank), *words] for rank in range(RANKS)]
        started = [subprocess.Popen(command, cwd=ROOT) for command in commands]  # noqa: S603
        codes = [process.wait() for process in started]
        if any(codes):
            raise RuntimeError(f"the ranks ended with {codes}: expected 0 of each; the error is printed above")
        both = [records.decode(Path(folder, str(rank)).read_text()) for rank in range(RANKS)]
    tick(config.steps)
    return {"microseconds": both}


def work(rank: int, seed: int, steps: int, tensors: int, elements: int, folder: str) -> None:
    """Do one rank's part, and write its times into the folder."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    Path(folder, str(rank)).write_text(records.encode(timed(seed, steps, tensors, elements)))
    dist.barrier()
    dist.destroy_process_group()


SCALERS: dict[str, Callable[[], Any]] = {
    "torch alone": lambda: torch.amp.GradScaler("cpu", SCALE),
    "torch": lambda: ShardedGradScaler("cpu", SCALE, process_group=dist.group.WORLD),  # type: ignore[no-untyped-call]
    "ours alone": lambda: GradScaler("cpu", SCALE),
    "ours": lambda: GradScaler("cpu", SCALE, group="world"),
}


def timed(seed: int, steps: int, tensors: int, elements: int) -> dict[str, list[float]]:
    """Return microseconds of a step by arm, a number per round, on this rank."""
    torch.manual_seed(seed)
    params = [nn.Parameter(torch.randn(elements)) for _ in range(tensors)]
    optimizer, scalers = torch.optim.AdamW(params), {name: make() for name, make in SCALERS.items()}

    def once(name: str) -> float:
        scaler = scalers[name]
        scaler.scale(torch.ones(()))
        for param in params:
            param.grad = torch.full_like(param, SCALE)
        dist.barrier()
        start = time.perf_counter()
        scaler.step(optimizer)
        scaler.update()
        return round(1e6 * (time.perf_counter() - start), 1)

    return rounds.in_turn(tuple(SCALERS), once, steps, lambda _: None)


def table(rows: Sequence[Record]) -> str:
    """Return the ratios of the times."""
    lines = []
    for rank, times in enumerate(rows[0]["microseconds"]):
        torch_alone, torchs, alone, ours = (statistics.quantiles(times[name], n=4)[0] for name in SCALERS)
        lines.append(
            f"rank {rank}: a step of torch's takes {torch_alone:.0f} us alone, {torchs:.0f} with a group; of ours "
            f"{alone:.0f} and {ours:.0f}; with / alone {torchs / torch_alone:.3f} and {ours / alone:.3f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(runner.main("ranks"))
