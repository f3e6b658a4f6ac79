"""What would another rule have done? How well does replaying it over a recorded run predict a run of its own?

Two networks are trained in fp16 under torch's machine with four growth intervals G, and once in float32; `ampsim.probe`
records each step's *ceiling*, the largest scale that would not have overflowed. Each rule is then replayed over each
recording (`ampsim.replay_ceilings`) and held against the run that really had it, with the same seed: skips, mean
scale, and the distance between the two scale trajectories. Replay is an open loop: it does not know that
a step skipped here or there changes all weights after it.

What a probe cannot know: how far a step that did overflow was above its ceiling. And it looks at parameters; in
the sigmoid network the gradients of activations overflow before, so its trace `fp32 tried` has the ceilings
that backward passes in fp16 find by trying.

Device: cpu, or cuda with `--device cuda`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ampsim import replay_ceilings
from ampsim.core.machine import Rule
from ampsim.probe import Probe, ceilings
from ampsim.records import Record
from experiments import runner
from experiments.training import digits_data, fp16, loop, series, tasks
from experiments.training.ceilings import ceiling
from experiments.training.loop import train

Bits = NDArray[np.float64]  # log2 of a scale, one per step


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 700  # backward passes a run; a unit makes one in float32 and one an interval
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    intervals: tuple[int, ...] = (5, 20, 50, 200)  # G
    start_log2: int = 20  # of every scale, near both networks' ceilings
    batch_cpu: int = 16  # images per step
    batch_cuda: int = 256
    lr_relu: float = 0.1  # of SGD
    lr_sigmoid: float = 1e-2  # of Adam
    eps: float = 1e-15  # of Adam
    width: int = 64
    shown: int = 50  # the G whose replayed trajectories are kept


SMOKE = Config(steps=20, seeds=(0,), intervals=(2, 5), shown=5, width=16)


class Run(NamedTuple):
    """A training run and its recording."""

    bits: Bits  # the scale in force
    found_inf: NDArray[np.bool_]
    ceilings: Bits  # log2, by the probe
    tried: Bits  # log2, by trying; of the float32 run only
    final_loss: float


@dataclass(frozen=True)
class Network:
    """A network: `relu`, which is easy, with SGD, or `sigmoid`, which is deep, with Adam."""

    name: Literal["relu", "sigmoid"]


def arms(config: Config) -> dict[str, Network]:
    return {"relu": Network("relu"), "sigmoid": Network("sigmoid")}


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid")


def run(config: Config, arm: Network, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Make all runs of one network with one seed; the columns are explained in `data/README.md`."""
    intervals, runs = [None, *config.intervals], {}
    for done, interval in enumerate(intervals, 1):
        runs[rule_name(interval)] = record(config, arm, seed, device, interval)
        tick(config.steps * done // len(intervals))
    traces = {"fp32 tried": runs["fp32"].tried, **{name: made.ceilings for name, made in runs.items()}}
    return {
        "runs": {name: columns(made) for name, made in runs.items() if name != "fp32"},
        "replays": [
            compare(trace, interval, traces[trace], runs[rule_name(interval)], config)
            for trace in traces
            for interval in config.intervals
        ],
    }


def rule_name(interval: int | None) -> str:
    """Return the key of a run in the record; None trains in float32, without a scale."""
    return "fp32" if interval is None else f"G={interval}"


def make_task(config: Config, arm: Network, seed: int, device: str) -> tuple[tasks.Task, torch.optim.Optimizer]:
    """Return a network that is easy, with SGD, or deep, with Adam."""
    batch = config.batch_cpu if device == "cpu" else config.batch_cuda
    if arm.name == "sigmoid":
        task = tasks.make("sigmoid", seed, device, batch)
        return task, torch.optim.Adam(task.model.parameters(), lr=config.lr_sigmoid, eps=config.eps, fused=True)
    generator = fp16.prepare(seed)
    layers = nn.Linear(digits_data.PIXELS, config.width), nn.ReLU(), nn.Linear(config.width, digits_data.CLASSES)
    task = tasks.digits(nn.Sequential(*layers), generator, device, batch)
    return task, torch.optim.SGD(task.model.parameters(), lr=config.lr_relu)


def record(config: Config, arm: Network, seed: int, device: str, interval: int | None) -> Run:
    """Train once, under the probe."""
    task, optimizer = make_task(config, arm, seed, device)
    chosen = loop.FP32 if interval is None else loop.dynamic(interval, config.start_log2)
    scaler, fp32 = chosen.scaler(device), interval is None
    log, tried, rows, near = [], [], [], float(config.start_log2)
    dtype = torch.float32 if fp32 else torch.float16
    with Probe(task.model, scale=scaler) as probe:
        for step in train(task, optimizer, scaler, config.steps, dtype=dtype):
            log.append((math.log2(step.scale), step.found_inf, step.loss))
            probe.step()
            rows += probe.drain()
            if fp32:
                near = ceiling(task, step.batch, near)
                tried.append(near)
    bits, bad, losses = map(np.array, zip(*log, strict=True))
    return Run(bits, bad, np.log2(ceilings(rows)), np.array(tried), float(losses[-100:].mean()))


def columns(done: Run) -> dict[str, Any]:
    """Return what a real run did."""
    return {
        "skips": int(done.found_inf.sum()),
        "mean_log2_scale": series.six_digits([float(done.bits.mean())])[0],
        "final_loss": series.six_digits([done.final_loss])[0],
        "log2_changes": series.changes(done.bits.tolist()),
    }


def replayed(interval: int, trace: Bits, config: Config) -> tuple[Bits, int]:
    """Return the scale in force at each step if a rule meets these ceilings, and the skips."""
    done = replay_ceilings(Rule(2.0**config.start_log2, growth_interval=interval), np.exp2(trace))
    return np.log2([done.first, *done.scales()[:-1]]), len(done.skipped)


def compare(name: str, interval: int, trace: Bits, real: Run, config: Config) -> dict[str, Any]:
    """Compare one rule over one recording with the run that had this rule."""
    bits, skips = replayed(interval, trace, config)
    return {
        "trace": name,
        "interval": interval,
        "skips": skips,
        "mean_log2_scale": series.six_digits([float(bits.mean())])[0],
        "distance": series.six_digits([float(np.abs(bits - real.bits).mean())])[0],
        **({"log2_changes": series.changes(bits.tolist())} if interval == config.shown else {}),
    }


if __name__ == "__main__":
    raise SystemExit(runner.main("replay_fidelity"))
