"""What may foretell a crash of the loss scale: what is watched, and the threshold at which each signal raises an alarm.

The thresholds were chosen before the runs; to look also from step 10 on only, when their start had been seen. All
signals are causal: an alarm at step t looks at steps up to t.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor, nn

from ampsim.core import theory
from ampsim.core.formats import FP16
from ampsim.core.machine import Rule
from ampsim.probe import Histogram
from ampsim.records import Record
from experiments.training.loop import Step

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

MEDIAN_OF, MEDIAN_FROM = 50, 5  # steps before t that a running median looks back on; finite values that it needs


# ------------------------------------------------------------------------------------------- what is watched


@dataclass(frozen=True)
class Series:
    """The signals of a run, (steps,) each."""

    rule: Rule
    found_inf: Flags
    log2_scale: Floats
    loss: Floats  # before scaling
    norm: Floats  # of the unscaled gradient; inf or NaN where it is not finite
    activation: Floats  # the largest magnitude in or out of a linear layer; inf if one is not finite
    ceiling: Floats  # log2 of the largest scale that would not have overflowed; an upper bound where the step did

    @classmethod
    def of(cls, rule: Rule, steps: Sequence["Seen"]) -> "Series":
        """Build the series from what was seen of each step."""
        found_inf, *others = zip(*steps, strict=True)
        return cls(rule, np.array(found_inf), *(np.array(column, dtype=np.float64) for column in others))

    def after(self, first: int) -> "Series":
        """Return the run without the steps before `first`."""
        others = (self.log2_scale, self.loss, self.norm, self.activation, self.ceiling)
        return Series(self.rule, self.found_inf[first:], *(column[first:] for column in others))


class Seen(NamedTuple):
    """The signals of one step; the fields are those of `Series`."""

    found_inf: bool
    log2_scale: float
    loss: float
    norm: float
    activation: float
    ceiling: float


def observe(step: Step, activation: float) -> Seen:
    """Return what is watched; where a step overflowed, the next lower power of two is an upper bound of its ceiling."""
    log2 = math.log2(step.scale)
    ceiling = -1.0 if step.found_inf else math.log2(Histogram.of(step.gradient).ceiling(FP16))
    return Seen(step.found_inf, log2, step.loss, float(step.gradient.norm()) / step.scale, activation, log2 + ceiling)


def watch_activations(model: nn.Module) -> Callable[[], float]:
    """Return a function: the largest magnitude in or out of linear layers since the last call; inf for NaN."""
    seen: list[Tensor] = []

    def hook(_layer: nn.Module, inputs: Any, output: Tensor) -> None:
        seen.extend(x.detach().abs().amax().float() for x in (inputs[0], output))

    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(hook)

    def largest() -> float:
        value = float(torch.stack(seen).max())  # NaN if one is
        seen.clear()
        return value if math.isfinite(value) else math.inf

    return largest


# ------------------------------------------------------------------------------------------------- the signals


def consecutive_skips(run: Series) -> Flags:
    """Flag steps that end three skips in a row, or more."""
    padded = np.concatenate([[False, False], run.found_inf])
    return np.asarray(padded[:-2] & padded[1:-1] & padded[2:])


def low_scale(run: Series) -> Flags:
    """Flag steps whose scale is below 2^-8 of the initial one."""
    return np.asarray(run.log2_scale < math.log2(run.rule.init_scale) - 8)


def skip_budget(run: Series) -> Flags:
    """Flag more skips in the last 2 G steps than T1 allows a scale that ends at most one bit below where it began.

    With no clean step counted when the window begins.
    """
    skips = np.concatenate([[0], run.found_inf.cumsum()])
    ends = np.arange(1, len(skips))
    windows = np.minimum(ends, 2 * run.rule.growth_interval)
    allowed = [theory.skips(run.rule, int(window), descent=1.0) for window in windows]
    return np.asarray(skips[ends] - skips[ends - windows] > allowed)


def norm_spike(run: Series) -> Flags:
    """Flag steps whose gradient's norm is finite, and above 10 times its running median."""
    return np.asarray(np.isfinite(run.norm) & (run.norm > 10 * running_median(run.norm)))


def loss_spike(run: Series) -> Flags:
    """Flag steps whose loss is above twice its running median, or not finite."""
    return np.asarray(~np.isfinite(run.loss) | (run.loss > 2 * running_median(run.loss)))


def large_activation(run: Series) -> Flags:
    """Flag steps with an activation above 2^14, two bits below overflow."""
    return np.asarray(run.activation > 2.0**14)


def falling_ceiling(run: Series) -> Flags:
    """Flag steps whose ceiling is 4 bits or more below its highest of the 20 steps before."""
    highest = [run.ceiling[max(0, t - 20) : t + 1].max() for t in range(len(run.ceiling))]
    return np.asarray(run.ceiling <= np.array(highest) - 4)


SIGNALS: dict[str, Callable[[Series], Flags]] = {
    "3 skips in a row": consecutive_skips,
    "scale < init / 2^8": low_scale,
    "T1 budget exceeded": skip_budget,
    "gradient norm > 10 medians": norm_spike,
    "loss > 2 medians": loss_spike,
    "activation > 2^14": large_activation,
    "ceiling fell 4 bits": falling_ceiling,
}


def running_median(values: Floats) -> Floats:
    """Return the median of the finite ones of `MEDIAN_OF` values before each; inf where fewer than `MEDIAN_FROM`."""
    medians = np.full(len(values), np.inf)
    for t in range(len(values)):
        past = values[max(0, t - MEDIAN_OF) : t]
        past = past[np.isfinite(past)]
        if len(past) >= MEDIAN_FROM:
            medians[t] = np.median(past)
    return medians


# -------------------------------------------------------------------------------------------------- the alarms


def alarms(run: Series, first: int = 0) -> dict[str, list[list[int]]]:
    """Return, per signal, its alarms as [first step, last step], rising; steps before `first` are not looked at."""
    watched = run.after(first)
    return {
        name: [[begin + first, end + first] for begin, end in spells(signal(watched))]
        for name, signal in SIGNALS.items()
    }


def spells(flags: Sequence[bool] | Flags) -> list[list[int]]:
    """Return runs of True as [first, last]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return [[int(begin), int(end) - 1] for begin, end in zip(edges[::2], edges[1::2], strict=True)]


def lead(found: Sequence[Sequence[int]], crash: int) -> int | None:
    """Return the steps from a signal's first alarm to the crash; None if there was none up to it."""
    return crash - found[0][0] if found and found[0][0] <= crash else None


def table(records: Sequence[Record]) -> Table:
    """Return, per signal, its lead before each crash, and how many of the runs that do not crash raise it."""
    crashed = [record for record in records if record["crash_step"] is not None]
    calm = [record for record in records if record["crash_step"] is None]
    shown = Table("watched", "signal", "first alarm, steps before each crash", f"false alarms in {len(calm)} runs")
    for title, column in (("from step 0", "alarms"), ("from step 10", "alarms_from_10")):
        for signal in SIGNALS:
            leads = [lead(record[column][signal], record["crash_step"]) for record in crashed]
            raised = sum(bool(record[column][signal]) for record in calm)
            shown.add_row(title, signal, " ".join("none" if x is None else str(x) for x in leads), str(raised))
    return shown
