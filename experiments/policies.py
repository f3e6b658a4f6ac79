"""Which loss-scale policy skips least and wastes least of fp16's range?

*Open loop.* A network is trained in fp16 at a scale that stands low, and of each step the *ceiling* is recorded, the
largest scale that would not have overflowed: 65504 / max|g|. Every policy then meets these ceilings. A skipped step
does not change the steps after it, so that all policies are asked the same. That a ceiling is one is
checked on the way, by backward passes at the powers of two below and above it. In the middle of the stream the
ceiling falls by 10 bits, once for 10 steps and once for good. Recovery is the number of steps until the scale
is again within half a bit of what it would have been.

*Closed loop.* Each policy trains a deep sigmoid network of its own, through `ampsim.torch.GradScaler`, with the same
seeds. There a policy's skips cost steps and its low scales cost gradients; and there the activations'
gradients overflow before those of the weights do, which is all that a policy with ``amax`` sees. With a delay k the
scale alone is k steps late. Ceilings are found by trying, every few steps. The arm `fp32` needs no policy.

Takes about a minute and a half on one CPU core (native fp16). Device: cpu, or cuda with `--device cuda`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from ampsim import Rule, init, update
from ampsim.core.policies import Deduplicated, FloorSchedule, Headroom, LogMax, Observation, Probe, Ratio
from ampsim.records import Record
from ampsim.torch import GradScaler
from experiments import runner
from experiments.training import ceilings as _ceilings
from experiments.training import digits_data, fp16, tasks
from experiments.training.loop import train

TOP = 65504.0  # of fp16
LOW = 2.0**10  # the scale of the recorded run
START = 2.0**20  # within a bit of either network's ceiling, so that no climb is measured; LogMax starts at 1
MILESTONES = ((1000, 2.0**14), (2000, 2.0**16))
EARLIER = ((100, 2.0**14), (200, 2.0**16))  # of the closed loop, which is shorter
HALVINGS = 3  # its ceilings are known to 1/16 bit

POLICIES: dict[str, Any] = {
    # Zhao et al. 2019 (arXiv:1910.12385) compared with an interval of 10
    **{f"backoff G={interval}": Rule(START, growth_interval=interval) for interval in (10, 50, 200, 2000)},
    "backoff G=50 k=2": Rule(START, growth_interval=50, delay=2),
    "deduplicated G=50 k=2": Deduplicated(init_scale=START, growth_interval=50, delay=2),
    "probe G=50": Probe(init_scale=START, growth_interval=50),
    "probe G=50 k=2": Probe(init_scale=START, growth_interval=50, delay=2),
    "floor schedule G=2000": FloorSchedule(init_scale=START, growth_interval=2000, milestones=MILESTONES),
    "ratio G=1000": Ratio(init_scale=START),
    "headroom 1 bit": Headroom(init_scale=START, margin=1),
    "headroom 3 bits": Headroom(init_scale=START, margin=3),
    "LogMax": LogMax(),
    "LogMax as published": LogMax(faithful=True),
}
CLOSED: dict[str, Any] = {
    **POLICIES,
    "floor schedule G=2000": FloorSchedule(init_scale=START, growth_interval=2000, milestones=EARLIER),
}


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 5000  # of the recorded run
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    warm_up: int = 1000  # steps left out of the means
    batch: int = 32  # images a step
    width: int = 64
    lr: float = 0.1  # of SGD
    check_every: int = 50  # steps between two checks of the ceiling
    fall: float = 10.0  # bits that the ceiling falls by in the middle
    fall_steps: int = 10  # steps that the short fall lasts
    shown: int = 600  # steps around the short fall whose scales are kept, the first tenth before it
    closed_steps: int = 560  # backward passes of the closed loop
    closed_warm_up: int = 20  # of them left out of the means
    closed_batch_cpu: int = 32
    closed_batch_cuda: int = 256
    closed_lr: float = 1e-2  # of Adam
    eps: float = 1e-15  # of Adam
    sample_every: int = 20  # steps between two searches for the ceiling, and two counts of zeros


SMOKE = Config(
    steps=60, seeds=(0,), warm_up=10, check_every=5, fall_steps=2, shown=20, closed_steps=6, closed_warm_up=2,
    sample_every=4,
)  # fmt: skip


def arms(config: Config) -> list[str]:
    """`digits` is the open loop, of all policies at once."""
    return ["digits", "closed fp32", *(f"closed {name}" for name in CLOSED)]


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid")


def run(config: Config, unit: runner.Unit, device: str, tick: Callable[[int], None]) -> Record:
    """One arm; the columns are explained in `data/README.md`."""
    if unit.arm.startswith("closed "):
        return closed(unit.arm.removeprefix("closed "), unit.seed, config, device, tick)
    ceilings, checked, wrong = record(config, unit.seed, device, tick)
    middle = config.steps // 2
    first = middle - config.shown // 10
    return {
        "ceiling_log2": mean_and_deviation(np.log2(ceilings[config.warm_up :])),
        "checked": checked,
        "wrong": wrong,
        "fell_at": middle,
        "shown_from": first,
        "shown_ceilings": rounded(np.log2(fallen(ceilings, config, config.fall_steps)[first : first + config.shown])),
        "policies": {name: meet(rule, ceilings, config) for name, rule in POLICIES.items()},
    }


# ------------------------------------------------------------------------------------------- the stream


def record(config: Config, seed: int, device: str, tick: Callable[[int], None]) -> tuple[NDArray[np.float64], int, int]:
    """Ceilings, (steps,); how many were checked, and how many of these were wrong."""
    batches, data = fp16.prepare(seed), digits_data.load(device)
    model = nn.Sequential(
        nn.Linear(digits_data.PIXELS, config.width), nn.ReLU(), nn.Linear(config.width, digits_data.CLASSES)
    )
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    ceilings, checked, wrong = [], 0, 0
    for step in range(config.steps):
        rows = torch.randint(digits_data.TRAIN, (config.batch,), generator=batches).to(device)
        with fp16.autocast(device, fp16=True):
            loss = cross_entropy(model(data.train_x[rows]), data.train_y[rows])
        ceiling = TOP * LOW / largest(model, loss, LOW)
        if step % config.check_every == 0:
            below = 2.0 ** math.floor(math.log2(ceiling))
            checked += 1
            wrong += not (math.isfinite(largest(model, loss, below)) and math.isinf(largest(model, loss, 2 * below)))
            largest(model, loss, LOW)
        ceilings.append(ceiling)
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= LOW
        optimizer.step()
        tick(step + 1)
    return np.array(ceilings), checked, wrong


def largest(model: nn.Module, loss: torch.Tensor, scale: float) -> float:
    """Max|g| of one backward pass at a scale, still scaled; inf also where it is NaN."""
    model.zero_grad()
    torch.autograd.backward(loss * scale, retain_graph=True)
    value = fp16.flat_gradient(model).abs().max().item()
    return value if math.isfinite(value) else math.inf


def fallen(ceilings: NDArray[np.float64], config: Config, steps: int) -> NDArray[np.float64]:
    """The stream with its ceiling lowered from the middle on, for some steps."""
    lower, middle = ceilings.copy(), len(ceilings) // 2
    lower[middle : middle + steps] /= 2.0**config.fall
    return lower


# ------------------------------------------------------------------------------------------- the policies


def follow(rule: Any, state: Any, ceilings: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The scale of each step and whether it overflowed."""
    scales, flags = [], []
    for ceiling in ceilings:
        bad = not state.scale <= ceiling
        scales.append(state.scale)
        flags.append(bad)
        seen: Any = Observation(bad, math.inf if bad else TOP / ceiling, float(bad))
        state = update(rule, state, seen)
    return np.array(scales), np.array(flags)


def meet(rule: Any, ceilings: NDArray[np.float64], config: Config) -> Record:
    """What one policy makes of the stream as it was, of the short fall, and of the long one."""
    scales, bad = follow(rule, init(rule), ceilings.tolist())
    kept = slice(config.warm_up, None)
    headroom = np.log2(ceilings / scales)[kept][~bad[kept]]
    short, short_bad = follow(rule, init(rule), fallen(ceilings, config, config.fall_steps).tolist())
    _, long_bad = follow(rule, init(rule), fallen(ceilings, config, config.steps).tolist())
    middle = config.steps // 2
    first = middle - config.shown // 10
    return {
        "skips": int(bad[kept].sum()),
        "skip_rate": float(bad[kept].mean()),
        "headroom": mean_and_deviation(headroom),
        "worst_headroom": round(float(headroom.max()), 3) if headroom.size else None,
        "burst": worst_burst(bad[kept]),
        "fall_skips": int(short_bad[middle : middle + 2 * config.fall_steps].sum()),
        "recovery": recovery(scales[middle + config.fall_steps :], short[middle + config.fall_steps :]),
        "long_fall_skips": int(long_bad[middle:].sum() - bad[middle:].sum()),
        "shown": rounded(np.log2(short[first : first + config.shown])),
    }


def recovery(before: NDArray[np.float64], after: NDArray[np.float64]) -> int | None:
    """Steps until the scale is within half a bit of what it would have been; None if the stream ends first."""
    back = np.flatnonzero(np.log2(after) > np.log2(before) - 0.5)
    return int(back[0]) if back.size else None


def worst_burst(bad: NDArray[np.bool_]) -> int:
    """The longest run of overflows."""
    return max(map(len, "".join(" x"[flag] for flag in bad.tolist()).split()), default=0)


def mean_and_deviation(values: NDArray[np.float64]) -> list[float] | None:
    return rounded([values.mean(), values.std()]) if values.size else None


def rounded(values: Any) -> list[float]:
    """Bits to three digits."""
    return [round(float(value), 3) for value in values]


# -------------------------------------------------------------------------------------------- the closed loop


def make_scaler(name: str, device: str) -> GradScaler:
    """Our scaler with a policy, or torch's machine by its constants."""
    if name == "fp32":
        return GradScaler(device, enabled=False)
    rule = CLOSED[name]
    if isinstance(rule, Rule):
        return GradScaler(device, rule.init_scale, growth_interval=rule.growth_interval, depth=rule.delay)
    return GradScaler(device, policy=rule, depth=rule.delay)


def closed(name: str, seed: int, config: Config, device: str, tick: Callable[[int], None]) -> Record:
    """Train a network by one policy."""
    batch = config.closed_batch_cpu if device == "cpu" else config.closed_batch_cuda
    task = tasks.make("sigmoid", seed, device, batch)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=config.closed_lr, eps=config.eps, fused=True)
    dtype = torch.float32 if name == "fp32" else torch.float16
    log, sampled = [], []
    for step in train(task, optimizer, make_scaler(name, device), config.closed_steps, dtype=dtype):
        bits = math.log2(step.scale)
        log.append((bits, step.loss, step.found_inf))
        if step.number % config.sample_every == 0 and step.number >= config.closed_warm_up and not step.found_inf:
            headroom = _ceilings.ceiling(task, step.batch, bits, HALVINGS) - bits if name != "fp32" else math.nan
            sampled.append((headroom, (step.gradient == 0).float().mean().item()))
        tick(step.number + 1)
    return {**closed_columns(log, sampled, config), "test_loss": task.test_loss()}


def closed_columns(
    log: list[tuple[float, float, bool]], sampled: list[tuple[float, float]], config: Config
) -> dict[str, Any]:
    """From (log2 scale, loss, overflow) of each step, and (headroom, share of zeros) of the clean ones sampled."""
    bits, losses, bad = map(np.array, zip(*log, strict=True))
    kept = bad[config.closed_warm_up :]
    headroom, zero = np.array(sampled).reshape(-1, 2).T
    return {
        "skips": int(kept.sum()),
        "skip_rate": float(kept.mean()),
        "burst": worst_burst(kept),
        "headroom": mean_and_deviation(headroom) if np.isfinite(headroom).all() else None,
        "mean_log2_scale": rounded([bits[config.closed_warm_up :].mean()])[0],
        "zero": mean_and_deviation(zero),
        "final_loss": fp16.six_digits([losses[-100:].mean()])[0],
        "found_inf": np.flatnonzero(bad).tolist(),
        "shown": rounded(bits[::5]),
    }


if __name__ == "__main__":
    raise SystemExit(runner.main("policies"))
