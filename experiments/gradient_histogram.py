"""How do gradients lie across binades in each layer, and how much does fp16 lose beyond rounding?

The histogram follows P. Micikevicius et al., *Mixed Precision Training*, ICLR 2018, figure 3, for
four models trained in float32. It covers the gradients of parameters and of activations (the output
of every module). A histogram shows which elements one rounding would flush at any loss scale. But
an fp16 backward pass rounds at each layer, and elements flushed near the loss are missing in every
later layer. Therefore the fp16 backward pass also runs from the same weights and batch, at scales
from far too small to far too large. Both are compared with the float32 gradient: the share of lost
elements, and the relative error of the whole gradient. Arms:

- `sigmoid`, `resnet`, `gpt`: the loss is a mean over images or tokens;
- `vit`: the loss is a sum over values and images, as in many reconstruction losses.

Dividing the loss by 2^k, as for a micro-batch, shifts all elements by k binades and changes nothing
else, bit for bit. For `gpt`, the share of a global batch of 2^22 tokens is therefore read at the
scale times `share`.

Device: cpu, or cuda with `--device cuda`, where the models are larger.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from ampsim.core.formats import FP16
from ampsim.core.json_lines import Record
from ampsim.probe import GradientRecord, Histogram
from ampsim.probe.binades import INF, SMALLEST, ZERO
from experiments import runner
from experiments.training import gradient_snapshots, series
from experiments.training.gradient_snapshots import (
    CASES,
    layer,
    probed,
    snapshots,
    total,
)
from experiments.training.tasks import Batch, Task
from experiments.training.what_fp16_did import backward_passes, compare, flat

GLOBAL_TOKENS = 2**22  # of a global batch


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 200  # optimizer steps per unit; after the last one is a snapshot
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    earlier: Annotated[tuple[int, ...], runner.BEFORE_THE_END] = (
        0,
        20,
    )  # steps before which there is one, too
    lowest_log2: int = -36  # loss scales 2^k of the backward passes
    highest_log2: int = 24
    every_log2: Annotated[int, runner.COUNT] = 2


SMOKE = Config(steps=1, seeds=(0,), earlier=(0,), lowest_log2=-24, every_log2=24)


def arms(config: Config) -> dict[str, gradient_snapshots.Model]:
    return gradient_snapshots.ARMS


def inputs() -> dict[str, str]:
    return gradient_snapshots.inputs(*CASES)


def run(
    config: Config,
    arm: gradient_snapshots.Model,
    seed: int,
    device: str,
    tick: Callable[[int], None],
) -> Record:
    """Train one model with one seed; the columns are explained in `data/README.md`."""
    scales = range(config.lowest_log2, config.highest_log2 + 1, config.every_log2)
    points, columns = [*config.earlier, config.steps], []
    for step, task, batch in snapshots(arm.name, seed, device, points):
        rows = probed(task, batch)
        columns.append({**by_layer(task, rows), **sweep(task, batch, rows, scales)})
        tick(step)
    targets = batch[1].numel()
    return {
        "layers": layers(task, rows),
        "points": points,
        "log2_scales": list(scales),
        "share": targets / GLOBAL_TOKENS if arm.name == "gpt" else None,
        **{name: [column[name] for column in columns] for name in columns[0]},
    }


def layers(task: Task, rows: Iterable[GradientRecord]) -> list[str]:
    """Return the names of the layers from the input to the loss."""
    names = [name for name, _ in task.model.named_parameters()]
    return list(dict.fromkeys(map(layer, [*names, *(row.name for row in rows)])))


def by_layer(task: Task, rows: Sequence[GradientRecord]) -> Record:
    """Return the histograms of each layer, of both kinds."""

    def of(kind: str, name: str) -> list[int]:
        return compact(
            total(
                row.histogram
                for row in rows
                if row.kind == kind and layer(row.name) == name
            )
        )

    names = layers(task, rows)
    return {
        f"{kind}s": [of(kind, name) for name in names]
        for kind in ("parameter", "activation")
    }


def compact(histogram: Histogram) -> list[int]:
    """Return [zeros, exponent of the lowest binade that is not empty, elements in it, in the next
    one, ...].
    """
    binades = histogram.counts[ZERO + 1 : INF]
    filled = binades.nonzero()[0]
    zeros = int(histogram.counts[ZERO])
    if not len(filled):
        return [zeros]
    return [
        zeros,
        int(filled[0]) + SMALLEST,
        *map(int, binades[filled[0] : filled[-1] + 1]),
    ]


def sweep(
    task: Task, batch: Batch, rows: Sequence[GradientRecord], log2_scales: Sequence[int]
) -> Record:
    """Return what fp16 makes of the gradient at each loss scale: rounded once, and computed in it."""
    parameters = list(task.model.parameters())
    truth = flat(parameter.grad for parameter in parameters)
    activations = total(row.histogram for row in rows if row.kind == "activation")
    once = [compare(truth, (truth * 2.0**k).half(), 2.0**k) for k in log2_scales]
    passes = backward_passes(task, batch, [2.0**k for k in log2_scales])
    real = [
        compare(truth, gradient, 2.0**k)
        for gradient, k in zip(passes, log2_scales, strict=True)
    ]
    columns = {}
    for name, measured in (("rounded", once), ("real", real)):
        for what, column in zip(
            ("flushed", "overflowed", "error"), series.table(measured), strict=True
        ):
            columns[f"{name}_{what}"] = series.six_digits(column)
    # `low` leaves out the one magnitude that is flushed in a binade of which all else is not
    would_be = [activations.lost(2.0**k, FP16).flushed.low for k in log2_scales]
    return {**columns, "activations_flushed": series.six_digits(would_be)}


if __name__ == "__main__":
    raise SystemExit(runner.main("gradient_histogram"))
