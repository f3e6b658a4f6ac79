"""Cases of `experiments.theory` for `ampsim.core.theory.stochastic`: T3, T8, T9."""

import math
from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ampsim.core import theory
from ampsim.core.machine import Rule
from experiments.theorems.case import WIDE, Arm, Case, Config, Held, case_of
from experiments.theorems.simulate import Array, Batch


def solved(config: Config, rng: Generator) -> list[Held]:
    """Hold T3 against the stationary vector of the whole chain of (level, count)."""
    worst = 0.0
    for interval, levels, backoff in (
        (1, 6, 1),
        (3, 9, 1),
        (10, 12, 1),
        (40, 10, 1),
        (5, 12, 2),
        (12, 9, 3),
    ):
        p = np.sort(rng.random(levels) ** 4)
        form = theory.stationary(p, interval, backoff)
        pi = np.stack([form.at(count) for count in range(interval)], axis=1)
        worst = max(worst, float(abs(pi - chain(p, interval, backoff)).max()))
    return [Held("largest error of a probability", 0, worst)]


def chain(p: Array, interval: int, backoff: int) -> Array:
    """Return pi(level, count) by solving pi P = pi, (levels, interval); the bounds stop the scale, not the count."""
    levels = len(p)
    moves = np.zeros((levels, interval, levels, interval))
    for j in range(levels):
        for count in range(interval):
            moves[j, count, max(j - backoff, 0), 0] += p[j]
            after = (j, count + 1) if count + 1 < interval else (min(j + 1, levels - 1), 0)
            moves[(j, count, *after)] += 1 - p[j]
    size = levels * interval
    system = moves.reshape(size, size).T - np.eye(size)
    system[0] = 1.0  # one equation is redundant: the shares add up to 1
    return np.linalg.solve(system, np.eye(size)[0]).reshape(levels, interval)


@case_of
def normal_thresholds(
    config: Config, rng: Generator, interval: int, sigma: float, backoff_bits: int = 1
) -> list[Held]:
    """Hold T3 where log2 of the threshold is normal(16.5, sigma)."""
    x, p = theory.normal_thresholds(16.5, sigma)
    form = theory.stationary(p, interval, backoff_bits)
    rule = Rule(2.0 ** int(x @ form.levels), 2.0, 2.0**-backoff_bits, interval, arithmetic=WIDE)

    def overflows(scale: Array) -> NDArray[np.bool_]:
        return np.asarray(np.log2(scale) > rng.normal(16.5, sigma, len(scale)))

    rate, mean = settle(rule, overflows, config, rng)
    below = 16.5 - float(x @ form.clean)
    return [
        Held("skip rate", form.skip_rate, rate, 0.03),
        Held("headroom", below, 16.5 - mean, 0.01),
    ]


def settle(
    rule: Rule,
    overflows: Callable[[Array], NDArray[np.bool_]],
    config: Config,
    rng: Generator,
    times: int = 1,
) -> tuple[float, float]:
    """Skip rate, and mean log2 of the scale over clean steps, once `times` the usual intervals have passed."""
    interval, batch = rule.growth_interval, Batch(rule, config.runs)
    # Spread over levels and counts, or the runs would grow in step for long.
    batch.scale *= 2.0 ** -rng.integers(0, int(theory.bits(rule)[1]), config.runs)
    batch.tracker = rng.integers(0, interval, config.runs)
    skipped, total = 0, 0.0
    settling, counted = (
        times * config.settling * interval,
        max(config.steps, config.settling * interval),
    )
    for step in range(settling + counted):
        found = overflows(batch.scale)
        if step >= settling:
            skipped += int(found.sum())
            total += float(np.log2(batch.scale[~found]).sum())
        batch.update(found)
    everything = counted * config.runs
    return skipped / everything, total / (everything - skipped)


@case_of
def ranks(config: Config, rng: Generator, count: int) -> list[Held]:
    """Hold T3 b: the tracked quantile's shift against the exact mean levels; a limit, so to 0.06 bits."""
    x, p = theory.normal_thresholds(16.5, 2.0)
    one, many = (theory.stationary(any_of(p, n), 2000).levels @ x for n in (1, count))
    return [Held("bits lost", theory.cost_of_ranks(2.0, 2000, count), float(one - many), 0.02)]


def any_of(p: Array, count: int) -> Array:
    """Return the chance that one of `count` independent events of chance p happens."""
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1(count * np.log1p(-p)))


@case_of
def bad_steps(config: Config, rng: Generator, interval: int, rate: float) -> list[Held]:
    """Hold T8: bad steps under a constant threshold, below the critical rate."""

    def overflows(scale: Array) -> NDArray[np.bool_]:
        return np.asarray((scale > 2.0**16.5) | (rng.random(len(scale)) < rate))

    rule = Rule(growth_interval=interval, arithmetic=WIDE)
    measured, mean = settle(rule, overflows, config, rng, times=5)
    return [Held("skip rate", theory.bad_step_skip_rate(interval, rate), measured, 0.03),
            Held("levels lost", theory.bad_step_headroom(interval, rate), 16 - mean, 0.05)]  # fmt: skip


@case_of
def falling(config: Config, rng: Generator, interval: int, rate: float) -> list[Held]:
    """Hold T8: bad steps above the critical rate, no threshold in reach."""
    rule = Rule(2.0**900, growth_interval=interval, arithmetic=WIDE)
    batch, steps = Batch(rule, config.runs), config.settling * interval // 2
    for step in range(steps + 10 * config.steps):
        if step == steps:
            start = np.log2(batch.scale).mean()
        batch.update(rng.random(config.runs) < rate)
    measured = (np.log2(batch.scale).mean() - start) / (10 * config.steps)
    return [Held("bits a step", theory.bad_step_drift(rule, rate), float(measured), 0.03)]


@case_of
def best(config: Config, rng: Generator, price: float, rate: float, tolerance: float) -> list[Held]:
    """Hold T8: the exact best interval against 1 / sqrt(price lambda), a limit for lambda G << 1."""
    return [Held("G", 1 / math.sqrt(price * rate), theory.best_interval(rate, price), tolerance)]


@case_of
def flushed(config: Config, rng: Generator, sigma: float, lost: float) -> list[Held]:
    """Hold T9: log-normal elements, multiplied by the scale in float64 and rounded to fp16 once."""
    score = 4.753424  # Phi^-1(1 - 1e-6): the largest of a million elements
    log2 = rng.normal(0, sigma, config.elements) + 16 - lost - sigma * score
    with np.errstate(over="ignore"):
        share = float((np.exp2(log2).astype(np.float16) == 0).mean())
    return [Held("share", theory.flushed_share(sigma, score, lost), share, 0.1)]


def whole_loop(config: Config, rng: Generator) -> list[Held]:
    """Hold T3 and T9 together: the machine scales a log-normal gradient, fp16 says what overflows and what is lost."""
    sigma, elements, interval, runs = 7.0, 256, 20, max(1, config.runs // 10)
    x, upper = theory.normal_thresholds(
        math.log2(65520), sigma
    )  # one element's, as a threshold for the scale
    form = theory.stationary(any_of(upper, elements), interval)
    predicted = float(form.clean @ [theory.flushed_share(sigma, 0.0, 16.0 - j) for j in x])
    batch = Batch(Rule(2.0 ** int(x @ form.levels), growth_interval=interval), runs)
    lost, skipped = 0, 0
    for step in range(config.settling * interval + config.steps // 4):
        with np.errstate(over="ignore"):
            rounded = (
                np.exp2(rng.normal(0, sigma, (runs, elements))) * batch.scale[:, None]
            ).astype(np.float16)
        found = np.isinf(rounded).any(axis=1)
        if step >= config.settling * interval:
            skipped += int(found.sum())
            lost += int((rounded[~found] == 0).sum())
        batch.update(found)
    everything = runs * (config.steps // 4)
    return [Held("skip rate", form.skip_rate, skipped / everything, 0.03),
            Held("share flushed", predicted, lost / elements / (everything - skipped), 0.03)]  # fmt: skip


GRID = [
    (g, m) for g in (20, 100, 500) for m in (1, 2, 4)
]  # growth interval, backoff in bits: marked on the map

CASES: dict[Arm, Case] = {
    Arm("T3", "six chains"): solved,
    **{Arm("T3", f"G={g}, sigma=1, b={m}"): normal_thresholds(g, 1.0, m) for g, m in GRID},
    Arm("T3", "G=50, sigma=0.3, b=1"): normal_thresholds(50, 0.3),
    Arm("T3", "G=50, sigma=4, b=1"): normal_thresholds(50, 4.0),
    Arm("T3 b", "1024 ranks, sigma=2, G=2000"): ranks(1024),
    Arm("T8", "lambda=1e-3, G=100"): bad_steps(100, 1e-3),
    Arm("T8", "lambda=1e-3, G=400"): bad_steps(400, 1e-3),
    Arm("T8", "lambda=1e-3, G=800"): falling(800, 1e-3),
    Arm("T8", "lambda=1e-3, G=2000"): falling(2000, 1e-3),
    Arm("T8", "best G, price 0.1, lambda=1e-5"): best(0.1, 1e-5, 0.03),
    Arm("T8", "best G, price 0.1, lambda=1e-4"): best(0.1, 1e-4, 0.05),
    Arm("T8", "best G, price 0.01, lambda=1e-4"): best(0.01, 1e-4, 0.2),
    Arm("T9", "sigma=5, 0 bits"): flushed(5, 0),
    Arm("T9", "sigma=5, 5 bits"): flushed(5, 5),
    Arm("T9", "sigma=8, 0 bits"): flushed(8, 0),
    Arm("T9", "with T3, sigma=7, G=20"): whole_loop,
}
