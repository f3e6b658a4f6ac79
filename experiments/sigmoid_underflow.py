"""Can a deep sigmoid network train in fp16 without loss scaling, and which loss scales work?

Sigmoids shrink the backward signal until the first layers' gradients are below fp16's smallest
number. The setup is not rescaled to cause this: it is the textbook network on scikit-learn's digits
with the textbook optimizer. Arms: float32; fp16 unscaled; fp16 with a fixed scale; fp16 with
torch's dynamic scaler at two growth intervals G. In every fp16 arm, a step with a non-finite
gradient is skipped.

Adam's eps is 1e-15 in all arms. With the usual 1e-8, eps would dominate the unscaled gradients of
the first layers, some 2^-27, and the arms would differ in eps, not in underflow.

Device: cpu, or cuda with `--device cuda`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ampsim.core.json_lines import Record
from experiments import runner
from experiments.training import digits_data, fp16, loop, series, tasks

RECOMPUTED = ("fp32", "unscaled", "static 2^16", "dynamic G=50")


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 1200  # optimizer steps per unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    batch: int = 128  # images per step
    width: int = 32  # units a hidden layer
    depth: int = 8  # linear layers
    lr: float = 1e-2  # of Adam
    eps: float = 1e-15  # of Adam
    static_log2: tuple[int, ...] = (
        0,
        4,
        8,
        12,
        16,
        20,
    )  # fixed loss scales 2^k; 2^0 is unscaled
    growth_intervals: tuple[int, ...] = (50, 2000)  # dynamic arms
    count_every: int = (
        5  # steps between two counts of what fp16 did; skipped steps are counted always
    )


SMOKE = Config(
    steps=8, seeds=(0,), static_log2=(0, 20), growth_intervals=(2,), count_every=2
)


def arms(config: Config) -> dict[str, loop.Arm]:
    fixed = {
        "unscaled" if k == 0 else f"static 2^{k}": loop.static(k)
        for k in config.static_log2
    }
    return {
        "fp32": loop.FP32,
        **fixed,
        **{f"dynamic G={n}": loop.dynamic(n) for n in config.growth_intervals},
    }


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid")


def run(
    config: Config, arm: loop.Arm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Train one arm with one seed; the columns are explained in `data/README.md`."""
    task = tasks.sigmoid(
        fp16.prepare(seed), device, config.batch, depth=config.depth, width=config.width
    )
    optimizer = torch.optim.Adam(
        task.model.parameters(), lr=config.lr, eps=config.eps, fused=True
    )
    elements = [
        sum(p.numel() for p in layer.parameters())
        for layer in task.model.get_submodule("layers").children()
    ]
    log, counted_steps, counts = loop.Log(), [], []
    for step in arm.train(task, optimizer, config.steps):
        log.add(step)
        if step.found_inf or step.number % config.count_every == 0:
            counted_steps.append(step.number)
            counts.append(fp16.count_classes(step.gradient, elements))
        tick(step.number + 1)
    zero, subnormal, overflow = series.table(counts)
    return {
        **log.record(),
        "elements": elements,
        "counted_steps": counted_steps,
        "zero": zero,
        "subnormal": subnormal,
        "overflow": overflow,
        "train_loss": task.evaluate(digits_data.load(device)[:2]),
        "test_accuracy": loop.accuracy(task),
    }


if __name__ == "__main__":
    raise SystemExit(runner.main("sigmoid_underflow"))
