"""What does it cost to watch every gradient of a training run, at every step?

Whole training steps of real models on real data: byte-level GPTs on text, one with many small parameters and one with
few large ones, and a residual network on digits. Side by side in one run and interleaved, each arm on its own copy of
the same model:

- `bare`: forward, backward, fused AdamW;
- `probe`: our exponent histograms of all gradients, drained to the host after every step;
- `watch`: ``ampsim.watch`` at its default into a file, in its steps without a sample, 99 of 100;
- `sampled`: ``ampsim.watch(every=1)``: every step with the exponents of all gradients, as often as `wandb`;
- `wandb`: ``wandb.watch(log="gradients", log_freq=1)`` in an offline run, and its ``log`` after every step. What its
  own process then does, and the disk, is not counted;
- `histc`: a loop of ``torch.histc`` with 64 bins over all gradients, each sent to the host.

Needs wandb. In float32, and in one unit, so that no second one runs beside it. Device:
cpu, where the clock is the process's CPU time, which others on a shared machine do not enter, and beside it that of the
training thread alone, as wandb has a second one; or cuda, between two events, and beside it the host's time until the
step returns, with fp16 autocast and, among others, GPT-2 small.
"""

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
import wandb
from rich.table import Table
from torch.nn.functional import cross_entropy

from ampsim.probe import Probe, Row
from ampsim.records import Record
from ampsim.watch import watch
from experiments import runner
from experiments.models.gpt import BYTES, GPT, GPT2_SMALL, Size
from experiments.models.resnet import ResNet
from experiments.timing.clocks import Seconds, timed
from experiments.timing.rounds import in_turn, spread
from experiments.training import digits_data, fp16, tasks, text_data

REPEATS = False  # it measures time
REQUIRES = ("wandb",)
ARMS = ("bare", "probe", "watch", "sampled", "wandb", "histc")
BINS = 64  # as in wandb
Sizes = Annotated[tuple[str, ...], runner.like(r"(gpt2? |resnet )[1-9]\d*x[1-9]\d*", "gpt 2x64")]


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 12  # rounds per trial; each round makes one step of every arm
    seeds: tuple[int, ...] = (0,)  # of parameters and batches
    trials: int = 5  # each with parameters at new addresses
    batch: int = 8  # windows of text; eight times as many images
    # gpt LAYERSxWIDTH; gpt2 the same with GPT-2's vocabulary and context; resnet BLOCKSxCHANNELS
    on_cpu: Sizes = ("gpt 2x64", "gpt 12x32", "gpt 2x256", "resnet 1x16")
    on_cuda: Sizes = ("gpt 12x32", "gpt2 12x768", "resnet 3x64")


SMOKE = Config(steps=2, trials=1, batch=2, on_cpu=("gpt 1x8", "resnet 1x4"))


def arms(config: Config) -> Mapping[str, runner.Single]:
    return {"training steps": runner.Single()}


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid", "gpt")


def run(config: Config, arm: runner.Single, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Time every model."""
    rows = []
    for size in config.on_cpu if device == "cpu" else config.on_cuda:
        trials = []
        for _ in range(config.trials):
            with offline() as tracker:
                trial = Trial(size, seed, device, config.batch, tracker)
                with trial.watching:
                    trials.append(in_turn(ARMS, partial(trial.once, device=device), config.steps, tick))
        rows.append({"size": size, **trial.facts(), **summary(trials)})
    clocks = ("process CPU time", "thread CPU time") if device == "cpu" else ("CUDA events", "host until it returns")
    return {"clock": clocks[0], "host_clock": clocks[1], "wandb": wandb.__version__, "rows": rows}


@contextmanager
def offline() -> Iterator[wandb.Run]:
    """Start a run of wandb that speaks to no server and leaves nothing behind."""
    folders = ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")
    settings = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True)
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="ampsim-wandb-") as folder:
        os.environ |= dict.fromkeys(folders, folder)
        tracker = wandb.init(project="ampsim", mode="offline", dir=folder, settings=settings)
        try:
            yield tracker
        finally:
            tracker.finish()
            wandb.teardown()  # ends its process, which writes until then
            os.environ.clear()
            os.environ |= before


def make(size: str, seed: int, device: str, batch: int) -> tasks.Task:
    """Return a model of `size`, as in `Config`, with its data."""
    generator = fp16.prepare(seed)
    torch.use_deterministic_algorithms(mode=False)  # histc has none on CUDA
    kind, _, shape = size.partition(" ")
    depth, width = map(int, shape.split("x"))
    if kind == "resnet":
        model = ResNet(1, (width, 2 * width), depth, digits_data.CLASSES)
        return tasks.digits(model, generator, device, 8 * batch, square=True)
    vocabulary, context = GPT2_SMALL[:2] if kind == "gpt2" else (BYTES, 32)
    text = text_data.load(device)
    return tasks.Task(
        GPT(Size(vocabulary, context, depth, max(1, width // 64) if kind == "gpt2" else 4, width)).to(device),
        lambda: text_data.draw(text.train, batch, context, generator),
        lambda logits, y: cross_entropy(logits.flatten(0, 1), y.flatten()),
        text_data.spaced(text.test, 1, context),
    )


Times = dict[str, list[tuple[Seconds, Seconds]]]  # of each arm, one per round: the forward pass and the rest


class Trial:
    """The same model once an arm, and what watches it."""

    def __init__(self, size: str, seed: int, device: str, batch: int, tracker: wandb.Run) -> None:
        self.tasks = {arm: make(size, seed, device, batch) for arm in ARMS}
        self.optimizers = {
            arm: torch.optim.AdamW(task.model.parameters(), lr=1e-4, fused=True) for arm, task in self.tasks.items()
        }
        self.probe, self.rows = Probe(self.tasks["probe"].model), list[Row]()
        self.tracker = tracker
        tracker.watch(self.tasks["wandb"].model, log="gradients", log_freq=1)
        with ExitStack() as opened:
            opened.enter_context(self.probe)
            for arm, every in {"watch": 100, "sampled": 1}.items():  # 100 is the default
                file = f"{tracker.dir}/{arm}.jsonl"
                opened.enter_context(watch(self.tasks[arm].model, self.optimizers[arm], to=file, every=every))
            self.watching = opened.pop_all()

    def after(self, arm: str) -> None:
        """Do what comes after the optimizer's step, beside what hooks have done before."""
        if arm == "probe":
            self.probe.step()
            self.rows = self.probe.drain()
        elif arm == "wandb":
            self.tracker.log({"watched": 1})
        elif arm == "histc":
            params = self.tasks[arm].model.parameters()
            _ = [p.grad.histc(bins=BINS).cpu() for p in params if p.grad is not None]

    def once(self, arm: str, device: str) -> tuple[Seconds, Seconds]:
        """Time one step: the forward pass, which no arm changes, and the rest."""
        task, optimizer, losses = self.tasks[arm], self.optimizers[arm], []
        x, y = task.draw()

        def forward() -> None:
            with fp16.autocast(device, fp16=device == "cuda"):
                losses.append(task.criterion(task.model(x), y))

        def rest() -> None:
            optimizer.zero_grad()
            losses[0].backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            self.after(arm)

        return timed(forward, device), timed(rest, device)

    def facts(self) -> Record:
        """Return parameters and elements, and what the probe counted of them in its last step."""
        sizes = [p.numel() for p in self.tasks["probe"].model.parameters()]
        counted = sum(row.histogram.size for row in self.rows)
        return {"tensors": len(sizes), "elements": sum(sizes), "probed": [len(self.rows), counted]}


def summary(trials: Sequence[Times]) -> Record:
    """Return, per trial, microseconds of the bare step, medians of the rounds' differences from it, and ratios."""
    result: Record = {}
    for field, prefix in enumerate(("", "host_")):
        bare = [1e6 * statistics.median(a[field] + b[field] for a, b in times["bare"]) for times in trials]
        above = {arm: [1e6 * difference(times, arm, field) for times in trials] for arm in trials[0] if arm != "bare"}
        result[f"{prefix}bare"] = [round(b, 1) for b in bare]
        result[f"{prefix}above"] = {arm: [round(t, 1) for t in times] for arm, times in above.items()}
        result[f"{prefix}ratios"] = {
            arm: [round(theirs / ours, 3) for theirs, ours in zip(times, above["probe"], strict=True)]
            for arm, times in above.items()
            if arm != "probe"
        }
        if "sampled" in above:  # as often as each other
            pairs = zip(above["wandb"], above["sampled"], strict=True)
            result[f"{prefix}wandb_over_sampled"] = [round(theirs / ours, 3) for theirs, ours in pairs]
    return result


def difference(times: Times, arm: str, field: int) -> float:
    """Return the median over the rounds of how much longer a step took than the bare one, after the forward pass."""
    return statistics.median(a[field] - b[field] for (_, a), (_, b) in zip(times[arm], times["bare"], strict=True))


def table(records: Sequence[Record]) -> Table:
    """Return the middle trial of each, with the lowest and the highest ratio."""
    (record,) = records
    shown = Table(title=f"Above the bare step, {record['clock']}; theirs / ours (lowest to highest trial)")
    for column in ("model", "tensors", "elements", "bare, ms", "arm", "us", "% of step", "us a tensor", "theirs / ours",
                   "host clock"):  # fmt: skip
        shown.add_column(column, justify="left" if column in ("model", "arm") else "right")
    for row in record["rows"]:
        bare = statistics.median(row["bare"])
        shown.add_section()
        head = [row["size"], str(row["tensors"]), f"{row['elements']:,}", f"{bare / 1000:.2f}"]
        for arm, times in row["above"].items():
            cost = statistics.median(times)
            ratios = [spread(row[key].get(arm, []), 1) for key in ("ratios", "host_ratios")]
            shown.add_row(
                *head, arm, f"{cost:.0f}", f"{100 * cost / bare:.1f}", f"{cost / row['tensors']:.1f}", *ratios
            )
            head = [""] * len(head)
    return shown


if __name__ == "__main__":
    raise SystemExit(runner.main("probe_overhead"))
