"""When does a convolutional network in fp16 need loss scaling, and does the policy for it matter?

This is the question of `gpt_fp16`, on images. A residual network with GroupNorm learns digits.
Arms:

- `fp32`, `bf16`, and fp16 `unscaled`, with a fixed scale, and with ampsim's dynamic scaler at
  growth interval G = 50;
- `init 2^k`: dynamic, G = 50, with an initial scale that is far too low or far too high;
- `sum`: dynamic, G = 50, with the sum over the batch's images as the loss instead of their mean;
- `global`: the batch is one micro-batch of a global batch of 2^20 images, a size that has been
  tried (X. Zhai et al., *Sigmoid Loss for Language Image Pre-Training*, ICCV 2023), and the loss is
  divided by the number of images in the global batch, as under gradient accumulation; in float32,
  unscaled, and dynamic with G = 50.

In every fp16 arm, a step with a non-finite gradient is skipped. Adam's eps is 1e-15 in all arms, so
that the arms of the global batch differ in underflow and not in eps. `static_sweep` has the scales
between.

Device: cpu, or cuda with `--device cuda`, where a larger network learns the orientation of
photographs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ampsim.core.json_lines import Record
from experiments import runner
from experiments.training import loop, tasks

RECOMPUTED = ("fp32", "unscaled", "dynamic G=50", "global unscaled")
TASKS = {"cpu": "resnet", "cuda": "resnet32"}
GLOBAL_IMAGES = 2**20  # of a global batch


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 250  # optimizer steps per unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    batch_cpu: int = 16  # images per step
    batch_cuda: int = 64
    lr: float = 5e-3  # of Adam; falls to 0 in the last third
    eps: float = 1e-15  # of Adam
    static_log2: int = 16  # the fixed loss scale is 2^k
    growth_intervals: tuple[int, ...] = (50,)  # dynamic arms
    inits_log2: tuple[int, ...] = (8, 32)  # dynamic arms that start at 2^k
    count_every: int = 10  # steps between two counts of zeros


SMOKE = Config(
    steps=3, seeds=(0,), batch_cpu=4, batch_cuda=4, growth_intervals=(2,), count_every=2
)


def arms(config: Config) -> dict[str, loop.Arm]:
    return loop.usual_arms(
        config.static_log2, config.growth_intervals, config.inits_log2
    )


def inputs() -> dict[str, str]:
    return tasks.inputs(*TASKS.values())


def run(
    config: Config, arm: loop.Arm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Train one arm with one seed; the columns are explained in `data/README.md`."""
    batch = config.batch_cpu if device == "cpu" else config.batch_cuda
    task = tasks.make(TASKS[device], seed, device, batch)
    optimizer = torch.optim.Adam(
        task.model.parameters(), lr=config.lr, eps=config.eps, fused=True
    )
    log = loop.Log(config.count_every)
    for step in arm.train(
        task, optimizer, config.steps, factor=arm.factor(batch, GLOBAL_IMAGES)
    ):
        loop.cool(optimizer, config.lr, step.number, config.steps)
        log.add(step)
        tick(step.number + 1)
    return {
        **log.record(),
        "test_loss": task.test_loss(),
        "test_accuracy": loop.accuracy(task),
    }


if __name__ == "__main__":
    raise SystemExit(runner.main("resnet_fp16"))
