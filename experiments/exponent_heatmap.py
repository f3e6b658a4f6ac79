"""How do the gradients of a run compare, by binade, with the representable range of fp16?

At sampled steps, the gradient is also computed in float32 from the same weights and batch, and its
elements are counted by binade. The counts therefore include elements that fp16 loses. The
representable range reaches from half of fp16's smallest subnormal to its largest number, divided by
the loss scale. Rounding flushes smaller elements to zero, and larger elements overflow. The same
steps record which elements the fp16 backward pass lost. Arms:

- `gpt unscaled` and `gpt dynamic`: a byte-level GPT. Its batch is one micro-batch of a global batch
  of 2^22 tokens, and its loss is divided by the number of tokens in the global batch. The scale is
  1, or dynamic from 1 with a short growth interval, so that the range reaches the gradients within
  a few hundred steps.
- `sigmoid dynamic`: an 8-layer sigmoid network on digits. The gradients of its first layers lie at
  2^-30 and below.
- `residual dynamic`: the residual network of `scale_crash` at a learning rate at which the scale
  halves indefinitely.

Device: cpu, or cuda with `--device cuda`, where the GPT is GPT-2 small.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ampsim.core.json_lines import Record
from ampsim.probe import Histogram
from ampsim.probe.binades import INF, SMALLEST
from experiments import runner
from experiments.models.gpt import GPT2_SMALL
from experiments.training import loop, series, tasks
from experiments.training.what_fp16_did import compare, flat

GLOBAL_TOKENS = 2**22  # of a global batch


@dataclass(frozen=True, kw_only=True)
class Case(loop.Arm):
    """A loss scale, and the training that it serves."""

    task: str
    batch: int  # windows of text, or images, per step
    every: int  # optimizer steps per sample
    lr: float  # of Adam
    eps: float = 1e-15  # of Adam, which otherwise does not see gradients below its default of 1e-8


CASES = {
    "gpt unscaled": Case(loss="share", task="gpt", batch=2, every=3, lr=1e-3),
    "gpt dynamic": Case(
        growth_interval=8, loss="share", task="gpt", batch=2, every=3, lr=1e-3
    ),
    "sigmoid dynamic": Case(
        init_scale=2.0**16,
        growth_interval=50,
        task="sigmoid",
        batch=128,
        every=8,
        lr=1e-2,
    ),
    "residual dynamic": Case(
        init_scale=2.0**16,
        growth_interval=50,
        task="residual12",
        batch=64,
        every=1,
        lr=0.05,
        eps=1e-8,
    ),
}


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = (
        128  # samples per unit; an arm makes `Case.every` optimizer steps per sample
    )
    seeds: tuple[int, ...] = (
        0,
        1,
        2,
    )  # of weights and batches; of the first the counts are kept


SMOKE = Config(steps=3, seeds=(0,))


def arms(config: Config) -> dict[str, Case]:
    return CASES


def inputs() -> dict[str, str]:
    return tasks.inputs("gpt", "sigmoid")


def run(
    config: Config, case: Case, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Train one arm with one seed; the columns are explained in `data/README.md`."""
    task = tasks.make(case.task, seed, device, case.batch)
    size = tasks.GPT_TINY if device == "cpu" else GPT2_SMALL
    factor = case.factor(case.batch * size.context, GLOBAL_TOKENS)
    parameters = list(task.model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=case.lr, eps=case.eps, fused=True)
    scales, found_inf, samples, counts = [], [], [], []
    for step in case.train(task, optimizer, config.steps * case.every, factor=factor):
        scales.append(step.scale)
        if step.found_inf:
            found_inf.append(step.number)
        if step.number % case.every == 0:
            x, y = step.batch
            truth = flat(
                torch.autograd.grad(
                    task.criterion(task.model(x), y) * factor, parameters
                )
            )
            real = compare(truth, step.gradient, step.scale)
            rounded_once = compare(truth, (truth * step.scale).half(), step.scale)
            samples.append((real.flushed, rounded_once.flushed, real.overflowed))
            if seed == config.seeds[0]:
                counts.append(nonempty(Histogram.of(truth)))
            tick(step.number // case.every + 1)
    lost, rounded, not_finite = (
        series.six_digits(column) for column in series.table(samples)
    )
    return {
        "every": case.every,
        "elements": sum(p.numel() for p in parameters),
        "scale_changes": series.changes(scales),
        "found_inf": found_inf,
        "lost": lost,
        "rounded": rounded,
        "not_finite": not_finite,
        "counts": counts,
    }


def nonempty(histogram: Histogram) -> list[int]:
    """Return [exponent of the lowest binade that is not empty, elements in it, in the next one, ...
    to the highest].
    """
    binades = histogram.counts[1:INF]
    filled = binades.nonzero()[0]
    if not len(filled):
        return []
    return [int(filled[0]) + SMALLEST, *map(int, binades[filled[0] : filled[-1] + 1])]


if __name__ == "__main__":
    raise SystemExit(runner.main("exponent_heatmap"))
