"""What does it cost to watch every gradient at every step, beside wandb.watch?

Whole training steps of byte-level GPTs on text, with fused AdamW. Each arm has its own copy of the
same model; its cost is what it adds to the bare step. wandb's runs are offline, and what its own
process does is not counted. The floor is a loop of `torch.histc` over all gradients, each sent to
the host.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import wandb
from torch.nn.functional import cross_entropy

from ampsim.probe import GradientRecord, Probe
from ampsim.runs import watch
from experiments.bench.report import (
    Arms,
    Row,
    measure_arms,
    microseconds,
    require_same,
    run,
)
from experiments.models.gpt import BYTES, GPT, Size
from experiments.training import fp16, text_data

ARMS = ("bare", "probe", "watch", "wandb.watch", "floor")
SIZES = ("2x64", "12x32", "2x256")  # layers x width
BATCH, CONTEXT, HEADS, BINS = 8, 32, 4, 64


def histograms(model: GPT) -> None:
    """Count every gradient, and send the counts to the host."""
    for param in model.parameters():
        if param.grad is not None:
            param.grad.histc(bins=BINS).cpu()


@contextmanager
def trial(size: str) -> Iterator[Arms]:
    """Make the same model once an arm, and yield a training step of each."""
    depth, width = map(int, size.split("x"))
    text, counted = text_data.load("cpu"), list[GradientRecord]()
    models, optimizers, draws = {}, {}, {}
    for arm in ARMS:
        draws[arm] = fp16.prepare(0)
        models[arm] = GPT(Size(BYTES, CONTEXT, depth, HEADS, width))
        params = models[arm].parameters()
        optimizers[arm] = torch.optim.AdamW(params, lr=1e-4, fused=True)

    def once(arm: str, after: Callable[[], object]) -> float:
        """Make one step; return its time after the forward pass, which no arm changes."""
        x, y = text_data.draw(text.train, BATCH, CONTEXT, draws[arm])
        loss = cross_entropy(models[arm](x).flatten(0, 1), y.flatten())

        def work() -> None:
            optimizers[arm].zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizers[arm].step()
            after()

        return microseconds(work)

    def drain() -> None:
        probe.step()
        counted[:] = probe.drain()

    with (
        offline() as tracker,
        Probe(models["probe"]) as probe,
        watch(
            models["watch"],
            optimizers["watch"],
            to=f"{tracker.dir}/watch.jsonl",
            sample_every=1,
        ),
    ):
        tracker.watch(models["wandb.watch"], log="gradients", log_freq=1)
        ways: dict[str, Callable[[], object]] = {
            "bare": lambda: None,
            "probe": drain,
            "watch": lambda: None,  # by hooks, as wandb
            "wandb.watch": lambda: tracker.log({"watched": 1}),
            "floor": lambda: histograms(models["floor"]),
        }
        yield {arm: partial(once, arm, ways[arm]) for arm in ARMS}
    bare = [*models["bare"].parameters()]
    for arm in ARMS:
        same = all(map(torch.equal, bare, models[arm].parameters()))
        require_same(f"parameters, {arm}", same)
    elements = sum(param.numel() for param in bare)
    counts = sum(row.histogram.size for row in counted)
    require_same("elements counted", counts == elements)


@contextmanager
def offline() -> Iterator[wandb.Run]:
    """Start a run of wandb that speaks to no server and leaves nothing behind."""
    quiet = {"silent": True, "console": "off", "disable_git": True}
    settings = wandb.Settings(**quiet, x_disable_stats=True, x_disable_meta=True)
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="ampsim-wandb-") as folder:
        for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            os.environ[name] = folder
        tracker = wandb.init(
            project="ampsim", mode="offline", dir=folder, settings=settings
        )
        try:
            yield tracker
        finally:
            tracker.finish()
            wandb.teardown()  # ends its process, which writes until then
            os.environ.clear()
            os.environ |= before


def measure(
    sizes: Sequence[str] = SIZES, rounds: int = 12, trials: int = 5
) -> list[Row]:
    """Time every model."""
    torch.set_num_threads(1)
    rows = []
    for size in sizes:
        times = measure_arms(partial(trial, size), rounds, trials, above="bare")
        for arm in ("probe", "watch"):
            for theirs, goal in (("wandb.watch", 10.0), ("floor", None)):
                pair = times[arm], times[theirs]
                rows.append(Row(f"GPT {size}, {arm}", theirs, "us added", *pair, goal))
    return rows


if __name__ == "__main__":
    run("watching", measure)
