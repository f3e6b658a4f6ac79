"""Cases of `experiments.theory` for `ampsim.core.theory.pathwise`: T1, T2, T4 to T7, T10."""

import math
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ampsim.core import theory
from ampsim.core.machine import Rule
from experiments.theorems import simulate
from experiments.theorems.case import WIDE, Arm, Case, Config, Held, case_of
from experiments.theorems.simulate import Array, Batch

# ------------------------------------------------------------------------------------------------ T1: any history

T1_RULES = [(2, 0.5, g) for g in (1, 2, 3, 5, 10, 50)] + [
    (2, 0.25, 7),
    (4, 0.5, 3),
    (1.5, 0.8, 5),
    (1.1, 0.7, 4),
]


def any_history(config: Config, rng: Generator) -> list[Held]:
    """Hold T1 on random and adversarial histories of 200 updates: the bound, and with W the identity."""
    each, updates = config.histories // len(T1_RULES), 200
    violations, failures, tightest = 0, 0, 0.0
    for growth, backoff, interval in T1_RULES:
        rule = Rule(2.0**16, growth, backoff, interval, arithmetic=WIDE)
        skipped, descent, wasted = histories(rule, each, updates, rng)
        bound = np.array([theory.skips(rule, updates, bits) for bits in descent])
        exact = np.array(
            [theory.skips(rule, updates, *case) for case in zip(descent, wasted, strict=True)]
        )
        violations += int((skipped > bound + 1e-9).sum())
        failures += int((abs(skipped - exact) > 1e-9).sum())
        tightest = max(tightest, float((skipped[bound > 1] / bound[bound > 1]).max()))
    return [Held("violations", 0, violations), Held("failures of the identity", 0, failures),
            Held("largest skips / bound", 1, tightest, 1e-9)]  # fmt: skip


def histories(rule: Rule, size: int, updates: int, rng: Generator) -> tuple[Array, Array, Array]:
    """Return skips, descent in bits and wasted clean steps of `size` histories of six kinds."""
    batch = Batch(rule, size)
    kind, rate = rng.integers(0, 6, size), rng.random(size) ** 2
    threshold, burst = rng.normal(16, 4, size), np.zeros(size, bool)
    skipped, wasted, clean = np.zeros(size), np.zeros(size), np.zeros(size, np.int64)
    for _ in range(updates):
        luck, x = rng.random(size), np.log2(batch.scale)
        burst ^= luck < 0.1
        threshold += np.where(kind == 3, rng.normal(0, 0.5, size), 0.0)
        found = np.choose(kind, [
            luck < rate,  # independent
            burst,  # in bursts
            x > threshold,  # a constant threshold
            x > threshold,  # one that walks
            (batch.tracker == rule.growth_interval - 1) & (luck < rate),  # just before a growth: wastes most
            (batch.tracker == 0) & (luck < 1 - rate / 2),  # right after a growth or an overflow: wastes nothing
        ])  # fmt: skip
        wasted += np.where(found, clean % rule.growth_interval, 0)
        clean = np.where(found, 0, clean + 1)
        skipped += found
        batch.update(found)
    return skipped, 16 - np.log2(batch.scale), wasted + clean % rule.growth_interval


# -------------------------------------------------------------------------------------- T2, T5, T7, T10: constant


def constant(rule: Rule, period: int, phases: int, periods: int = 1) -> tuple[float, float, int]:
    """Skip rate, mean headroom and longest burst over whole periods, averaged over phases of the threshold."""
    b = theory.bits(rule)[1]
    warm = (rule.delay + 2) * period
    rates, rooms, bursts = [], [], []
    for phase in (np.arange(phases) + 0.5) * b / phases:
        threshold = math.log2(rule.init_scale) + phase
        found, x = simulate.follow(rule, np.full(warm + periods * period, 2.0**threshold))
        found, x = found[warm:], x[warm:]
        rates.append(found.mean())
        rooms.append(np.mean(threshold - x[~found]))
        bursts.append(longest_run(found))
    return float(np.mean(rates)), float(np.mean(rooms)), max(bursts)


def longest_run(found: NDArray[np.bool_]) -> int:
    """Return the most overflows in a row; the window is a period, so a run may go round its end."""
    ends = np.flatnonzero(~np.concatenate([found, found]))
    return int(np.diff(ends).max() - 1)


@case_of
def threshold_at_rest(
    config: Config, rng: Generator, growth: float, backoff: float, interval: int, period: int
) -> list[Held]:
    """Hold T2 where rho is rational, so that the machine is periodic."""
    rule = Rule(2.0**16, growth, backoff, interval, arithmetic=WIDE)
    rate, room, _ = constant(rule, period, phases=4)
    return [
        Held("skip rate", theory.skip_rate(rule), rate),
        Held("headroom", theory.headroom(rule), room),
    ]


@case_of
def traded(
    config: Config, rng: Generator, growth: float, backoff: float, interval: int, period: int
) -> list[Held]:
    """Hold T7 where the machine is periodic."""
    rule = Rule(2.0**16, growth, backoff, interval, arithmetic=WIDE)
    rate, room, _ = constant(rule, period, phases=4)
    return [Held("skip rate x headroom", theory.trade_off(rule), rate * room)]


def irrational(config: Config, rng: Generator) -> list[Held]:
    """Hold T2 over 1000 intervals, rho irrational; the error is at most (G (a + b) / b + rho G) / (n (G + rho))."""
    rule = Rule(2.0**16, 1.5, 0.8, 50, arithmetic=WIDE)
    rate, room, _ = constant(rule, 50, phases=1, periods=1000)
    return [
        Held("skip rate", theory.skip_rate(rule), rate, 0.003),
        Held("headroom", theory.headroom(rule), room, 0.01),
    ]


@case_of
def late(config: Config, rng: Generator, interval: int, k: int) -> list[Held]:
    """Hold T5 for the cumulative policy."""
    rule = Rule(2.0**16, growth_interval=interval, delay=k)
    rate, room, burst = constant(rule, period=(k + 1) * (interval + 1) + k, phases=2)
    predicted = theory.stale("cumulative", interval, k)
    return [Held(*row) for row in zip(("skip rate", "headroom", "burst"), predicted, (rate, room, burst),
                                      strict=True)]  # fmt: skip


Refill = Literal["clean", "growth", "backoff"]
REFILLS: list[tuple[int, Refill]] = [
    (1, "growth"),
    (2, "growth"),
    (2, "clean"),
    (2, "backoff"),
    (4, "growth"),
]


@case_of
def patient(
    config: Config, rng: Generator, interval: int, hysteresis: int, refill: Refill
) -> list[Held]:
    """Hold T10."""
    rule = Rule(
        2.0**16, 2.0, 0.5, interval, hysteresis=hysteresis, hysteresis_reset=frozenset({refill})
    )
    rate, _, burst = constant(rule, period=interval + hysteresis, phases=1)
    return [
        Held("skip rate", theory.hysteresis_skip_rate(rule), rate),
        Held("burst", hysteresis, burst),
    ]


# -------------------------------------------------------------------------------------------- T4, T6: on the move


@case_of
def spike(
    config: Config,
    rng: Generator,
    growth: float,
    backoff: float,
    interval: int,
    height: float,
    steps: int,
) -> list[Held]:
    """Hold T4: a spike, then no threshold until the scale is back."""
    rule = Rule(2.0**16, growth, backoff, interval, arithmetic=WIDE)
    predicted = theory.recovery(rule, height, steps)
    thresholds = np.full(predicted.steps + 1, np.inf)
    thresholds[:steps] = 2.0 ** (16 - height)
    found, x = simulate.follow(rule, thresholds)
    back = steps + int(np.argmax(x[steps:] >= 16))
    measured = (int(found.sum()), back, float((16 - x[:back]).sum()))
    return [
        Held(*row) for row in zip(("skips", "steps", "bit-steps"), predicted, measured, strict=True)
    ]


@case_of
def drift(
    config: Config,
    rng: Generator,
    interval: int,
    delta: Fraction,
    growth: float = 2.0,
    backoff: float = 0.5,
) -> list[Held]:
    """Hold T6: a rate within 2.5 skips of the predicted number, for the two ends."""
    rule = Rule(2.0 ** (-800 if delta > 0 else 800), growth, backoff, interval, arithmetic=WIDE)
    steps = min(40_000, int(1500 / abs(delta)))
    thresholds = math.log2(rule.init_scale) + 0.3 + np.arange(steps) * float(delta)
    found, _ = simulate.follow(rule, np.exp2(thresholds))
    predicted = theory.drifting_skip_rate(rule, delta)
    return [Held("skip rate", predicted, float(found.mean()), 2.5 / (predicted * steps))]


CASES: dict[Arm, Case] = {
    Arm("T1", "100,000 histories"): any_history,
    Arm("T2", "2, 0.5, G=50"): threshold_at_rest(2, 0.5, 50, 51),
    Arm("T2", "2, 0.5, G=2000"): threshold_at_rest(2, 0.5, 2000, 2001),
    Arm("T2", "2, 0.25, G=50"): threshold_at_rest(2, 0.25, 50, 101),
    Arm("T2", "4, 0.5, G=20"): threshold_at_rest(4, 0.5, 20, 22),
    Arm("T2", "8, 0.25, G=10"): threshold_at_rest(8, 0.25, 10, 23),
    Arm("T2", "1.5, 0.8, G=50"): irrational,
    Arm("T4", "10 bits, 10 steps, G=2000"): spike(2, 0.5, 2000, 10, 10),
    Arm("T4", "10 bits, 40 steps, G=50"): spike(2, 0.5, 50, 10, 40),
    Arm("T4", "3 bits, 1 step, G=50"): spike(2, 0.5, 50, 3, 1),
    Arm("T4", "3.5 bits, 53 steps, G=50"): spike(2, 0.5, 50, 3.5, 53),
    Arm("T4", "2, 0.25, 5 bits, 9 steps, G=20"): spike(2, 0.25, 20, 5, 9),
    Arm("T4", "8, 0.25, 5 bits, 9 steps, G=20"): spike(8, 0.25, 20, 5, 9),
    **{Arm("T5", f"G={g}, k={k}"): late(g, k) for g in (20, 50) for k in (0, 1, 2, 4)},
    Arm("T6", "up 1/200, G=50"): drift(50, Fraction(1, 200)),
    Arm("T6", "up 3/200, G=50"): drift(50, Fraction(3, 200)),
    Arm("T6", "up 1/200, 4, 0.25, G=50"): drift(50, Fraction(1, 200), 4, 0.25),
    Arm("T6", "up 1/300, 2, 0.25, G=50"): drift(50, Fraction(1, 300), 2, 0.25),
    Arm("T6", "down 1/100, G=50"): drift(50, Fraction(-1, 100)),
    Arm("T6", "down 1/20, G=50"): drift(50, Fraction(-1, 20)),
    Arm("T6", "down 1/480, G=50"): drift(50, Fraction(-1, 480)),
    Arm("T6", "down 1/102, G=50"): drift(50, Fraction(-1, 102)),
    Arm("T7", "2, 0.5, G=2000"): traded(2, 0.5, 2000, 2001),
    Arm("T7", "2, 0.25, G=50"): traded(2, 0.25, 50, 101),
    Arm("T7", "4, 0.5, G=20"): traded(4, 0.5, 20, 22),
    Arm("T7", "8, 0.25, G=10"): traded(8, 0.25, 10, 23),
    **{
        Arm("T10", f"G=50, H={h}, refilled at {refill}"): patient(50, h, refill)
        for h, refill in REFILLS
    },
}
