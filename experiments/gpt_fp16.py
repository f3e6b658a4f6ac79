"""When does a transformer in fp16 need loss scaling, and does the policy for the scale matter?

A byte-level GPT trains on text from Python's documentation. Under autocast its residual stream is
float32, as in practice. The branches and the gradient of each weight are fp16. Arms:

- `fp32`, `bf16`, and fp16 `unscaled`, with a fixed scale, and with ampsim's dynamic scaler at
  growth interval G = 50;
- `init 2^k`: dynamic, G = 50, with an initial scale that is far too low or far too high;
- `sum`: dynamic, G = 50, with the sum over the batch's tokens as the loss instead of their mean;
- `global`: the batch is one micro-batch of a global batch of 2^22 tokens, and the loss is divided
  by the number of tokens in the global batch, as under gradient accumulation; in float32, unscaled,
  and dynamic with G = 50.

In every fp16 arm, a step with a non-finite gradient is skipped. Adam's eps is 1e-15 in all arms. A
factor on all gradients does not change Adam's step until the gradients reach eps. With the usual
1e-8, the arms of the global batch would differ in eps, not in underflow.

On a CPU the model is small: 2 layers, 0.1 million parameters. Device: cpu, or cuda with `--device
cuda`, where the model is GPT-2 small with 124 million parameters; bytes are the first 256 entries
of its vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ampsim.core.json_lines import Record
from experiments import runner
from experiments.models.gpt import BYTES, GPT2_SMALL, Size
from experiments.training import fp16, loop, tasks, text_data

RECOMPUTED = ("fp32", "unscaled", "dynamic G=50", "global unscaled")
GLOBAL_TOKENS = 2**22  # of a global batch


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 160  # optimizer steps per unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    on_cpu: Size = tasks.GPT_TINY
    on_cuda: Size = GPT2_SMALL
    batch: int = 8  # windows of `context` bytes per step
    lr_cpu: float = 1e-3  # of Adam
    lr_cuda: float = 3e-4
    eps: float = 1e-15  # of Adam
    static_log2: int = 16  # the fixed loss scale is 2^k
    growth_intervals: tuple[int, ...] = (50,)  # dynamic arms
    inits_log2: tuple[int, ...] = (8, 32)  # dynamic arms that start at 2^k
    count_every: int = 10  # steps between two counts of zeros


SMOKE = Config(
    steps=3,
    seeds=(0,),
    on_cpu=Size(BYTES, context=16, layers=1, heads=2, width=32),
    batch=4,
    growth_intervals=(2,),
    count_every=2,
)


def arms(config: Config) -> dict[str, loop.Arm]:
    return loop.usual_arms(
        config.static_log2, config.growth_intervals, config.inits_log2
    )


def inputs() -> dict[str, str]:
    return tasks.inputs("gpt")


def run(
    config: Config, arm: loop.Arm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Train one arm with one seed; the columns are explained in `data/README.md`."""
    on_cpu = device == "cpu"
    size = config.on_cpu if on_cpu else config.on_cuda
    task = tasks.text(size, fp16.prepare(seed), device, config.batch)
    lr = config.lr_cpu if on_cpu else config.lr_cuda
    optimizer = torch.optim.Adam(
        task.model.parameters(), lr=lr, eps=config.eps, fused=True
    )
    log = loop.Log(config.count_every)
    factor = arm.factor(config.batch * size.context, GLOBAL_TOKENS)
    for step in arm.train(task, optimizer, config.steps, factor=factor):
        log.add(step)
        tick(step.number + 1)
    train = tasks.text_sample(text_data.load(device).train, size.context)
    return {
        **log.record(),
        "train_loss": task.evaluate(train),
        "test_loss": task.test_loss(),
    }


if __name__ == "__main__":
    raise SystemExit(runner.main("gpt_fp16"))
