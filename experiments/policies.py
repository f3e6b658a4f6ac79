"""Which loss-scale policy skips the fewest steps and wastes the least of fp16's range?

A network trains in fp16 at a low scale. Each step's *threshold* is recorded: the largest scale that
would not have overflowed, 65504 / max|g|. Every policy is then replayed against these thresholds. A
skipped step does not change later steps, so all policies see the same thresholds. Backward passes at
the powers of two below and above verify each threshold. In the middle of the stream, the threshold
drops by 10 bits, once for 10 steps and once permanently. Recovery is the number of steps until the
scale is within half a bit of its value without the drop. In `rules_trained`, some of these policies
train networks.

Device: cpu, or cuda with `--device cuda`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from ampsim import init, update
from ampsim.core.formats import FP16
from ampsim.core.json_lines import Record
from ampsim.core.policies import Observation
from experiments import runner
from experiments.training import digits_data, fp16, tasks
from experiments.training.policies import mean_and_deviation, policies, three_decimals, worst_burst

LOW = 2.0**10  # the scale of the recorded run
POLICIES = policies(milestones=((1000, 2.0**14), (2000, 2.0**16)))


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 5000  # of the recorded run
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    warm_up: Annotated[int, runner.BEFORE_THE_END] = 1000  # steps left out of the means
    batch: int = 32  # images per step
    width: int = 64
    lr: float = 0.1  # of SGD
    check_every: int = 50  # steps between two checks of the threshold
    fall: float = 10.0  # bits that the threshold falls by in the middle
    fall_steps: int = 10  # steps that the short fall lasts
    shown: int = 600  # steps around the short fall whose scales are kept, the first tenth before it


SMOKE = Config(steps=60, seeds=(0,), warm_up=10, check_every=5, fall_steps=2, shown=20)


@dataclass(frozen=True)
class Recording:
    """A training run whose thresholds all policies meet."""

    data: str


def arms(config: Config) -> dict[str, Recording]:
    return {"digits": Recording("digits")}


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid")


def run(
    config: Config, arm: Recording, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Record a run, and let each policy meet it; the columns are explained in `data/README.md`."""
    thresholds, checked, wrong = record(config, seed, device, tick)
    middle = config.steps // 2
    first = middle - config.shown // 10
    shown = slice(first, first + config.shown)
    return {
        "ceiling_log2": mean_and_deviation(np.log2(thresholds[config.warm_up :]), three_decimals),
        "checked": checked,
        "wrong": wrong,
        "fell_at": middle,
        "shown_from": first,
        "shown_ceilings": three_decimals(
            np.log2(fallen(thresholds, config, config.fall_steps)[shown])
        ),
        "policies": {name: meet(rule, thresholds, config) for name, rule in POLICIES.items()},
    }


# ------------------------------------------------------------------------------------------- the stream


def record(
    config: Config, seed: int, device: str, tick: Callable[[int], None]
) -> tuple[NDArray[np.float64], int, int]:
    """Return the thresholds, (steps,), how many were checked, and how many of these were wrong."""
    batches, data = fp16.prepare(seed), digits_data.load(device)
    model = nn.Sequential(
        nn.Linear(digits_data.PIXELS, config.width),
        nn.ReLU(),
        nn.Linear(config.width, digits_data.CLASSES),
    )
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    thresholds, checked, wrong = [], 0, 0
    for step in range(config.steps):
        rows = torch.randint(digits_data.TRAIN, (config.batch,), generator=batches).to(device)
        with fp16.autocast(device, fp16=True):
            loss = cross_entropy(model(data.train_x[rows]), data.train_y[rows])
        threshold = FP16.max_finite * LOW / largest(model, loss, LOW)
        if step % config.check_every == 0:
            below = 2.0 ** math.floor(math.log2(threshold))
            checked += 1
            wrong += not (
                math.isfinite(largest(model, loss, below))
                and math.isinf(largest(model, loss, 2 * below))
            )
            largest(model, loss, LOW)
        thresholds.append(threshold)
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= LOW
        optimizer.step()
        tick(step + 1)
    return np.array(thresholds), checked, wrong


def largest(model: nn.Module, loss: torch.Tensor, scale: float) -> float:
    """Return max|g| of one backward pass at a scale, still scaled; inf also where it is NaN."""
    model.zero_grad()
    torch.autograd.backward(loss * scale, retain_graph=True)
    value = fp16.flat_gradient(model).abs().max().item()
    return value if math.isfinite(value) else math.inf


def fallen(thresholds: NDArray[np.float64], config: Config, steps: int) -> NDArray[np.float64]:
    """Return the stream with its threshold lowered from the middle on, for some steps."""
    lower, middle = thresholds.copy(), len(thresholds) // 2
    lower[middle : middle + steps] /= 2.0**config.fall
    return lower


# ------------------------------------------------------------------------------------------- the policies


def follow(
    rule: Any, state: Any, thresholds: Sequence[float]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the scale of each step and whether it overflowed."""
    scales, flags = [], []
    for threshold in thresholds:
        bad = not state.scale <= threshold
        scales.append(state.scale)
        flags.append(bad)
        seen: Any = Observation(bad, math.inf if bad else FP16.max_finite / threshold, float(bad))
        state = update(rule, state, seen)
    return np.array(scales), np.array(flags)


def meet(rule: Any, thresholds: NDArray[np.float64], config: Config) -> Record:
    """Return what one policy makes of the stream as it was, of the short fall, and of the long one."""
    scales, bad = follow(rule, init(rule), thresholds.tolist())
    kept = slice(config.warm_up, None)
    headroom = np.log2(thresholds / scales)[kept][~bad[kept]]
    short, short_bad = follow(
        rule, init(rule), fallen(thresholds, config, config.fall_steps).tolist()
    )
    _, long_bad = follow(rule, init(rule), fallen(thresholds, config, config.steps).tolist())
    middle = config.steps // 2
    first = middle - config.shown // 10
    return {
        "skips": int(bad[kept].sum()),
        "skip_rate": float(bad[kept].mean()),
        "headroom": mean_and_deviation(headroom, three_decimals),
        "worst_headroom": round(float(headroom.max()), 3) if headroom.size else None,
        "burst": worst_burst(bad[kept]),
        "fall_skips": int(short_bad[middle : middle + 2 * config.fall_steps].sum()),
        "recovery": recovery(
            scales[middle + config.fall_steps :], short[middle + config.fall_steps :]
        ),
        "long_fall_skips": int(long_bad[middle:].sum() - bad[middle:].sum()),
        "shown": three_decimals(np.log2(short[first : first + config.shown])),
    }


def recovery(before: NDArray[np.float64], after: NDArray[np.float64]) -> int | None:
    """Return the steps until the scale is within half a bit of what it would have been, or None."""
    back = np.flatnonzero(np.log2(after) > np.log2(before) - 0.5)
    return int(back[0]) if back.size else None


if __name__ == "__main__":
    raise SystemExit(runner.main("policies"))
