"""What does it cost to watch every gradient at every step, beside wandb.watch?

Whole training steps of byte-level GPTs on text, with fused AdamW. Each arm has its own copy of the
same model; its cost is what it adds to the bare step. wandb's runs are offline, and what its own
process does is not counted. The floor is a loop of `torch.histc` over all gradients, each sent to
the host.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
import wandb
from torch.nn.functional import cross_entropy

from ampsim.probe import GradientRecord as Probed
from ampsim.probe import Probe
from ampsim.runs import watch
from experiments.bench.report import SHARE, SPEEDUP, Row, require_same, run
from experiments.bench.rounds import in_turn
from experiments.models.gpt import BYTES, GPT, Size
from experiments.training import fp16, text_data

ARMS = ("bare", "probe", "watch", "wandb", "floor")
SIZES = ("2x64", "12x32", "2x256")  # layers x width
BATCH, CONTEXT, HEADS, BINS = 8, 32, 4, 64


class Trial:
    """The same model once an arm, and what watches it."""

    def __init__(self, size: str, tracker: wandb.Run) -> None:
        depth, width = map(int, size.split("x"))
        self.text, self.tracker = text_data.load("cpu"), tracker
        self.models, self.optimizers, self.draws = {}, {}, {}
        for arm in ARMS:
            self.draws[arm] = fp16.prepare(0)
            self.models[arm] = GPT(Size(BYTES, CONTEXT, depth, HEADS, width))
            params = self.models[arm].parameters()
            self.optimizers[arm] = torch.optim.AdamW(params, lr=1e-4, fused=True)
        self.probe, self.rows = Probe(self.models["probe"]), list[Probed]()
        self.file = f"{tracker.dir}/watch.jsonl"
        tracker.watch(self.models["wandb"], log="gradients", log_freq=1)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Attach what looks at gradients by hooks."""
        model, optimizer = self.models["watch"], self.optimizers["watch"]
        with ExitStack() as opened:
            opened.enter_context(self.probe)
            opened.enter_context(watch(model, optimizer, to=self.file, sample_every=1))
            yield

    def once(self, arm: str) -> float:
        """Make one step; return its microseconds after the forward pass, which no arm changes."""
        model, optimizer = self.models[arm], self.optimizers[arm]
        x, y = text_data.draw(self.text.train, BATCH, CONTEXT, self.draws[arm])
        loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
        start = time.process_time()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        self.after(arm)
        return 1e6 * (time.process_time() - start)

    def after(self, arm: str) -> None:
        """Do what comes after the optimizer's step, beside what hooks have done before."""
        if arm == "probe":
            self.probe.step()
            self.rows = self.probe.drain()
        elif arm == "wandb":
            self.tracker.log({"watched": 1})
        elif arm == "floor":
            grads = [
                p.grad for p in self.models[arm].parameters() if p.grad is not None
            ]
            _ = [grad.histc(bins=BINS).cpu() for grad in grads]

    def require_same(self) -> None:
        """Raise where watching has changed the training, or the probe has missed a gradient."""
        bare = [*self.models["bare"].parameters()]
        for arm in ARMS:
            same = all(map(torch.equal, bare, self.models[arm].parameters()))
            require_same(f"parameters, {arm}", same)
        counted = sum(row.histogram.size for row in self.rows)
        require_same("elements counted", counted == sum(p.numel() for p in bare))


def measure(
    sizes: Sequence[str] = SIZES, rounds: int = 12, trials: int = 5
) -> list[Row]:
    """Time every model."""
    torch.set_num_threads(1)
    return [row for size in sizes for row in rows(size, rounds, trials)]


def rows(size: str, rounds: int, trials: int) -> list[Row]:
    """Return what is compared on one model."""
    added: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for _ in range(trials):
        with offline() as tracker:
            trial = Trial(size, tracker)
            with trial.watching():
                times = in_turn(ARMS, trial.once, rounds)
            trial.require_same()
        for arm in ARMS:
            pairs = zip(times[arm], times["bare"], strict=True)
            added[arm].append(
                statistics.median(watched - bare for watched, bare in pairs)
            )
    found = []
    for arm in ("probe", "watch"):
        row = Row(
            f"GPT {size}, {arm}", "floor", "us added", added[arm], added["floor"], SHARE
        )
        peer = row._replace(against="wandb.watch", theirs=added["wandb"])
        found += [peer._replace(figure=SPEEDUP, goal=10.0), row]
    return found


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


if __name__ == "__main__":
    run("watching", measure)
