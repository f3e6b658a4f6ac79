"""With which fixed loss scales can a network train, and do its gradients predict them?

The residual network of `resnet_fp16` trains in fp16 with one loss scale 2^k from the first step to
the last. The result is a plateau between two cliffs: below it gradients underflow, and above it
steps are skipped. The arms `fp32` and `dynamic G=50` are for comparison.

Every few steps, the arm `fp32` also runs an fp16 backward pass from its own weights and batches at
every scale. It records the share of zero elements and the error of the whole gradient. For
comparison it records the same for the float32 gradient rounded to fp16 once, as a histogram of
gradients would show.

Dividing the loss by 2^k, as for a micro-batch, moves both cliffs by k to the right.

Device: cpu, or cuda with `--device cuda`, where a larger network learns the orientation of
photographs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ampsim.core.json_lines import Record
from experiments import runner
from experiments.training import loop, series, tasks
from experiments.training.what_fp16_did import backward_passes, compare

RECOMPUTED = ("fp32", "dynamic G=50", "static 2^-16", "static 2^0", "static 2^20")
TASKS = {"cpu": "resnet", "cuda": "resnet32"}
LEFT, RIGHT = (
    (-16, -15, -14, -13, -12, -11, -10),
    (14, 15, 16, 17, 18, 20, 24),
)  # closer at the cliffs


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 150  # optimizer steps per unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    static_log2: tuple[int, ...] = (
        *LEFT,
        -8,
        -4,
        0,
        4,
        8,
        12,
        *RIGHT,
    )  # fixed loss scales 2^k
    batch_cpu: int = 16  # images per step
    batch_cuda: int = 64
    lr: float = 5e-3  # of Adam; falls to 0 in the last third
    eps: float = 1e-15  # of Adam
    count_every: int = 10  # steps between two counts of zeros


SMOKE = Config(
    steps=3, seeds=(0,), static_log2=(-16, 24), batch_cpu=4, batch_cuda=4, count_every=2
)


def arms(config: Config) -> dict[str, loop.Arm]:
    fixed = {f"static 2^{k}": loop.static(k) for k in config.static_log2}
    return {"fp32": loop.FP32, "dynamic G=50": loop.dynamic(), **fixed}


def inputs() -> dict[str, str]:
    return tasks.inputs(*TASKS.values())


def run(
    config: Config, arm: loop.Arm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Train one arm with one seed; the columns are explained in `data/README.md`."""
    task = tasks.make(
        TASKS[device],
        seed,
        device,
        config.batch_cpu if device == "cpu" else config.batch_cuda,
    )
    optimizer = torch.optim.Adam(
        task.model.parameters(), lr=config.lr, eps=config.eps, fused=True
    )
    log, asked = loop.Log(config.count_every), Asked(config.static_log2)
    for step in arm.train(task, optimizer, config.steps):
        loop.cool(optimizer, config.lr, step.number, config.steps)
        log.add(step)
        if arm == loop.FP32:
            asked.add(task, step, counted=step.number % config.count_every == 0)
        tick(step.number + 1)
    ends = {"test_loss": task.test_loss(), "test_accuracy": loop.accuracy(task)}
    return {**log.record(), **ends, **(asked.record() if arm == loop.FP32 else {})}


class Asked:
    """The fate in fp16 of float32's gradients, at each of some scales 2^k."""

    def __init__(self, static_log2: Sequence[int]) -> None:
        self.scales = [2.0**k for k in static_log2]
        self.largest: list[float] = []
        self.rows: list[list[list[float]]] = []  # steps, columns, scales

    def add(self, task: tasks.Task, step: loop.Step, *, counted: bool) -> None:
        """Note one step of the arm `fp32`."""
        self.largest.append(step.gradient.abs().max().item())
        if counted:
            passes = zip(
                backward_passes(task, step.batch, self.scales), self.scales, strict=True
            )
            backward = [
                lost(gradient, step.gradient, scale) for gradient, scale in passes
            ]
            rounded = [
                lost((step.gradient * scale).half(), step.gradient, scale)
                for scale in self.scales
            ]
            self.rows.append(series.table(backward) + series.table(rounded))

    def record(self) -> Record:
        """Return the columns as `data/README.md` has them."""
        names = ("backward_zero", "backward_error", "rounded_zero", "rounded_error")
        columns = zip(names, series.table(self.rows), strict=True)
        return {"largest": series.six_digits(self.largest)} | {
            name: [series.six_digits(values) for values in column]
            for name, column in columns
        }


def lost(gradient: Tensor, truth: Tensor, scale: float) -> tuple[float, float]:
    """Return how a gradient that is multiplied by `scale` differs from the true one.

    Returns:
        The share of its elements that are zero; the length of the difference over that of `truth`,
        inf where an element is not finite.
    """
    return (gradient == 0).float().mean().item(), compare(truth, gradient, scale).error


if __name__ == "__main__":
    raise SystemExit(runner.main("static_sweep"))
