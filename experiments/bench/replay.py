"""How fast is a replay from event to event, beside a compiled loop that makes every step?

A trace has one number per step: the largest scale at which the step would not have overflowed. Two
traces of a million steps, whose logarithm walks: with noise at each step, or with less noise and
spikes. The growth interval is near 2000. The floor is one read of the trace.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from ampsim import Rule, replay_thresholds
from ampsim.core.replay.thresholds import index_thresholds
from experiments.bench.report import (
    Arms,
    Row,
    measure_arms,
    microseconds,
    require_same,
    run,
)

STEPS = 1_000_000
# Of a trial: the processor would learn the branches of one alone by heart.
RULES = [Rule(2.0 ** (12 + i % 8), growth_interval=1992 + i) for i in range(16)]
Trace = NDArray[np.float32]


def trace(name: str, steps: int, rng: np.random.Generator) -> Trace:
    """Return thresholds whose log2 walks around 17 and returns to where it began."""
    walk = np.cumsum(rng.normal(0, 5 / steps**0.5, steps))
    walk -= np.linspace(0, walk[-1], steps)
    log2 = 17 + walk + rng.normal(0, 0.3 if name == "walk" else 0.1, steps)
    if name == "spikes":
        log2 -= rng.exponential(4, steps) * (rng.random(steps) < 1 / 500)
        log2[rng.random(steps) < 1 / 50_000] = -np.inf
    thresholds: Trace = np.exp2(log2).astype(np.float32)
    return thresholds


def fold(
    thresholds: Trace,
    start: float,
    interval: int,
    skipped: Any,
    steps: Any,
    scales: Any,
) -> tuple[int, int]:
    """Make every step with factors of 2 and 1/2, and write the skipped steps and the new scales.

    The loop keeps the step at which the growth is due: with a streak it takes 1.2 times as long.

    Returns:
        The number of skips, and how often the scale changed.
    """
    held: Any = np.float32(start)
    due, skips, changes = interval, 0, 0
    # Unsigned: no test for an index from the end.
    for step in range(np.uint64(len(thresholds))):
        overflow = held > thresholds[step]
        if overflow or np.int64(step) + 1 == due:
            due = int(np.int64(step)) + 1 + interval
            if overflow:
                skipped[skips] = step
                skips += 1
            moved = held * np.float32(0.5 if overflow else 2.0)
            if moved < np.inf:
                held = moved
                steps[changes], scales[changes] = step, held
                changes += 1
    return skips, changes


@contextmanager
def trial(thresholds: Trace) -> Iterator[Arms]:
    """Compile the fold anew, as its time depends on where it lies, and yield the arms."""
    compiled: Any = numba.njit(fold)
    n, index = len(thresholds), index_thresholds(thresholds)
    made = (np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n))

    def folded(rule: Rule) -> tuple[int, int]:
        done: tuple[int, int] = compiled(
            thresholds, rule.init_scale, rule.growth_interval, *made
        )
        return done

    ways: dict[str, Callable[[Rule], object]] = {
        "compiled fold": folded,
        "replay": lambda rule: replay_thresholds(rule, index),
        "index and replay": lambda rule: replay_thresholds(rule, thresholds),
        "floor": lambda rule: thresholds.min(),
    }

    def once(way: Callable[[Rule], object]) -> float:
        return microseconds(lambda: [way(rule) for rule in RULES]) / len(RULES)

    yield {name: partial(once, way) for name, way in ways.items()}
    for rule in RULES:
        done, (skips, changes) = replay_thresholds(rule, index), folded(rule)
        found = done.scale_changes
        same = (
            np.array_equal(done.skipped, made[0][:skips]),
            np.array_equal(found["step"], made[1][:changes]),
            np.array_equal(found["scale"], made[2][:changes]),
        )
        require_same(f"replay of {rule}", all(same))


def measure(steps: int = STEPS, rounds: int = 15, trials: int = 5) -> list[Row]:
    """Time every trace."""
    rng = np.random.default_rng(0)
    rows = []
    for name in ("walk", "spikes"):
        times = measure_arms(partial(trial, trace(name, steps, rng)), rounds, trials)
        for ours, theirs, goal in (
            ("replay", "compiled fold", 8.0),
            ("index and replay", "compiled fold", None),
            ("index and replay", "floor", None),
        ):
            work = f"{name}, {ours}"
            rows.append(Row(work, theirs, "us", times[ours], times[theirs], goal))
    return rows


if __name__ == "__main__":
    run("replay", measure)
