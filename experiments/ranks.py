"""What do two ranks do when gradients overflow on one of them, or on both, and what does it cost them to agree?

Two processes in a gloo group, with torch's ShardedGradScaler and with ours and its `group`, both with fused optimizers,
with and without ``unscale_`` before the step. The gradients are `shards`, a part of one model on each rank as plain
tensors (SGD), or those of a small GPT in fp16 under `FSDP2` (AdamW). One element becomes inf on rank 0, on rank 1 or on
both. Then the two ranks time a step of AdamW, not fused, whose gradients lie there: torch.amp.GradScaler and ours
without a group, ShardedGradScaler and ours with one. The clock is the wall's, as to agree is to wait; others on the
machine enter, so that the lower quarter of the rounds tells more than their median.

What each optimizer does in each of its forms, and under each cut, is asked by `ranks_cells`.

Device: cpu. With nccl it has not been run yet.
"""

import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from ampsim import records
from ampsim.records import Record
from ampsim.torch import GradScaler
from experiments import runner
from experiments.models.gpt import BYTES, GPT, Size
from experiments.timing import rounds

DEVICES = ("cpu",)
REPEATS = False  # it measures time
RANKS = 2
OVERFLOWS = {"none": (), "rank 0": (0,), "rank 1": (1,), "both": (0, 1)}
GPT_SIZE = Size(BYTES, context=16, layers=1, heads=2, width=32)
SCALE = 2.0**10
ROOT = Path(__file__).parents[1]
START = "import sys; from experiments import ranks; ranks.work(*map(int, sys.argv[1:-1]), sys.argv[-1])"


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 200  # rounds; each round times every arm once
    seeds: tuple[int, ...] = (0,)  # of parameters, tokens and gradients
    tensors: int = 100
    elements: int = 10_000  # per tensor


SMOKE = Config(steps=3, tensors=2, elements=10)


def arms(config: Config) -> Mapping[str, runner.Single]:
    return {"two ranks": runner.Single()}


def run(config: Config, arm: runner.Single, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Start both ranks, and return what each of them wrote."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(seed), *map(str, (config.steps, config.tensors, config.elements)), folder]
        commands = [[sys.executable, "-c", START, str(rank), *words] for rank in range(RANKS)]
        started = [subprocess.Popen(command, cwd=ROOT) for command in commands]  # noqa: S603
        codes = [process.wait() for process in started]
        if any(codes):
            raise RuntimeError(f"the ranks ended with {codes}: expected 0 of each; the error is printed above")
        both = [records.decode(Path(folder, str(rank)).read_text()) for rank in range(RANKS)]
    tick(config.steps)
    rows = [{**row, "ranks": [each["outcomes"][i]["found"] for each in both]} for i, row in enumerate(cases())]
    return {"outcomes": rows, "microseconds": [each["microseconds"] for each in both]}


def cases() -> list[dict[str, str]]:
    """Return what is tried, in order."""
    return [
        {"gradients": gradients, "scaler": scaler, "way": way, "overflow": who}
        for gradients in ("shards", "FSDP2")
        for scaler in ("torch", "ours")
        for way in ("step", "unscale_")
        for who in OVERFLOWS
    ]


def work(rank: int, seed: int, steps: int, tensors: int, elements: int, folder: str) -> None:
    """Do one rank's part, and write what it found into the folder."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Found a non-scalar tensor")  # of torch's scaler, about its own flags
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    outcomes = [{"found": outcome(rank, seed, **case)} for case in cases()]
    times = timed(seed, steps, tensors, elements)
    Path(folder, str(rank)).write_text(records.encode({"outcomes": outcomes, "microseconds": times}))
    dist.barrier()
    dist.destroy_process_group()


def scaler_named(name: str) -> Any:
    return {
        "torch alone": lambda: torch.amp.GradScaler("cpu", SCALE),
        "torch": lambda: ShardedGradScaler("cpu", SCALE, process_group=dist.group.WORLD),  # type: ignore[no-untyped-call]
        "ours alone": lambda: GradScaler("cpu", SCALE),
        "ours": lambda: GradScaler("cpu", SCALE, group="world"),
    }[name]()


class Found(NamedTuple):
    """The sight of one rank after the step."""

    stepped: bool
    finite: bool
    scale: float
    error: str


def outcome(rank: int, seed: int, *, gradients: str, scaler: str, way: str, overflow: str) -> Found:
    """Step once, on this rank, and update."""
    torch.manual_seed(seed)
    model, optimizer, loss = MODELS[gradients]()
    scales, error = scaler_named(scaler), ""
    before = [own(param).clone() for param in model.parameters()]
    scales.scale(loss()).backward()
    if rank in OVERFLOWS[overflow]:
        own(next(p.grad for p in model.parameters() if p.grad is not None)).view(-1)[0] = torch.inf
    try:
        if way == "unscale_":
            scales.unscale_(optimizer)
        scales.step(optimizer)
        scales.update()
    except RuntimeError as raised:
        error = str(raised).partition("\n")[0]
    after = [own(param) for param in model.parameters()]
    stepped = not all(map(torch.equal, before, after))
    return Found(stepped, all(bool(part.isfinite().all()) for part in after), scales.get_scale(), error)


def own(tensor: Any) -> Tensor:
    """Return the part of a tensor that this rank has."""
    part: Tensor = tensor.detach()
    return part.to_local() if hasattr(part, "to_local") else part


Made = tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]


def shards() -> Made:
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, fused=True), lambda: model(torch.ones(4)).sum()


def fsdp2() -> Made:
    model = GPT(GPT_SIZE)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    tokens = torch.randint(BYTES, (2, GPT_SIZE.context + 1))

    def loss() -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True), loss


MODELS: dict[str, Callable[[], Made]] = {"shards": shards, "FSDP2": fsdp2}

TIMED = ("torch alone", "torch", "ours alone", "ours")


def timed(seed: int, steps: int, tensors: int, elements: int) -> dict[str, list[float]]:
    """Return microseconds of a step by arm, a number per round, on this rank."""
    torch.manual_seed(seed)
    params = [nn.Parameter(torch.randn(elements)) for _ in range(tensors)]
    optimizer, scalers = torch.optim.AdamW(params), {name: scaler_named(name) for name in TIMED}

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

    return rounds.in_turn(TIMED, once, steps, lambda _: None)


def table(rows: Sequence[Record]) -> str:
    """Return what each rank saw, and the ratios of the times."""
    lines = []
    for row in rows[0]["outcomes"]:
        seen = [
            error or f"{'step' if s else 'skip'} {'finite' if f else 'INF'} {x:g}" for s, f, x, error in row["ranks"]
        ]
        lines.append(
            "  ".join(f"{row[name]:<10}" for name in ("gradients", "scaler", "way", "overflow")) + " | ".join(seen)
        )
    for rank, times in enumerate(rows[0]["microseconds"]):
        torch_alone, torchs, alone, ours = (statistics.quantiles(times[name], n=4)[0] for name in TIMED)
        lines.append(
            f"rank {rank}: a step of torch's takes {torch_alone:.0f} us alone, {torchs:.0f} with a group; of ours "
            f"{alone:.0f} and {ours:.0f}; with / alone {torchs / torch_alone:.3f} and {ours / alone:.3f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(runner.main("ranks"))
