"""How fast is a replay from event to event, beside a compiled loop that makes every step?

A trace has one number per step: the largest scale at which the step would not have overflowed. Two
traces of a million steps, whose logarithm walks: with noise at each step, or with less noise and
spikes. The growth interval is near 2000. The floor is one read of the trace.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numba
import numpy as np
import numpy.typing as npt

from ampsim import Rule, replay_thresholds
from ampsim.core.replay.thresholds import index_thresholds
from experiments.bench.report import SHARE, SPEEDUP, Row, require_same, run
from experiments.bench.rounds import in_turn

STEPS = 1_000_000
RULES = 16  # a trial; the processor would learn the branches of one alone by heart
Trace = npt.NDArray[np.float32]


def measure(steps: int = STEPS, rounds: int = 15, trials: int = 5) -> list[Row]:
    """Time every trace."""
    rng = np.random.default_rng(0)
    traces = {name: trace(name, steps, rng) for name in ("walk", "spikes")}
    compared = (compare(name, traces[name], rounds, trials) for name in traces)
    return [row for rows in compared for row in rows]


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


class Made(NamedTuple):
    """Room for what a fold writes."""

    skipped: npt.NDArray[np.int64]  # steps
    steps: npt.NDArray[np.int64]  # at which the scale changes
    scales: npt.NDArray[np.float64]  # to


def fold(
    thresholds: Trace,
    start: float,
    growth: float,
    backoff: float,
    interval: int,
    made: Made,
) -> tuple[int, int]:
    """Make every step; return how many were skipped and how often the scale changed.

    The scale is held in float32, as in the trace. The loop keeps the step at which the growth is
    due: with a streak it takes 1.2 times as long.
    """
    held: Any = np.float32(start)
    due, skips, changes = interval, 0, 0
    for step in range(
        np.uint64(len(thresholds))
    ):  # unsigned: no test for an index from the end
        overflow = held > thresholds[step]
        if overflow or np.int64(step) + 1 == due:
            due = int(np.int64(step)) + 1 + interval
            factor = backoff if overflow else growth
            if overflow:
                made.skipped[skips] = step
                skips += 1
            moved = np.float32(np.float64(held) * factor)
            if moved < np.inf:
                held = moved
                made.steps[changes], made.scales[changes] = step, held
                changes += 1
    return skips, changes


class Fold:
    """The fold, compiled, with room for its results."""

    def __init__(self, thresholds: Trace) -> None:
        n = len(thresholds)
        self.thresholds, self.compiled = thresholds, cast("Any", numba.njit(fold))
        self.made = Made(np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n))

    def __call__(self, rule: Rule) -> tuple[int, int]:
        factors = (rule.init_scale, rule.growth_factor, rule.backoff_factor)
        done = self.compiled(self.thresholds, *factors, rule.growth_interval, self.made)
        return cast("tuple[int, int]", done)

    def require_same(self, rule: Rule) -> None:
        """Raise where the replay has other skips or other scales than the fold."""
        done, (skips, changes) = replay_thresholds(rule, self.thresholds), self(rule)
        pairs = (
            (done.skipped, self.made.skipped[:skips]),
            (done.scale_changes["step"], self.made.steps[:changes]),
            (done.scale_changes["scale"], self.made.scales[:changes]),
        )
        require_same(f"replay of {rule}", all(np.array_equal(a, b) for a, b in pairs))


def compare(name: str, thresholds: Trace, rounds: int, trials: int) -> list[Row]:
    """Return the rows of one trace."""
    found = [one_trial(thresholds, rounds) for _ in range(trials)]
    times = {way: [trial[way] for trial in found] for way in found[0]}
    replay, indexed = f"{name}, replay", f"{name}, index and replay"
    return [
        Row(
            replay, "compiled fold", "us", times["replay"], times["fold"], SPEEDUP, 8.0
        ),
        Row(indexed, "compiled fold", "us", times["indexed"], times["fold"], SPEEDUP),
        Row(indexed, "floor", "us", times["indexed"], times["floor"], SHARE),
    ]


def one_trial(thresholds: Trace, rounds: int) -> dict[str, float]:
    """Return the median of each way, with a fold compiled anew: where it lies changes its time."""
    starts = [2.0 ** (12 + i % 8) for i in range(RULES)]
    rules = [Rule(start, growth_interval=1992 + i) for i, start in enumerate(starts)]
    index, stepwise = index_thresholds(thresholds), Fold(thresholds)
    for rule in rules:
        stepwise.require_same(rule)
    ways: dict[str, Callable[[Rule], object]] = {
        "fold": stepwise,
        "replay": lambda rule: replay_thresholds(rule, index),
        "indexed": lambda rule: replay_thresholds(rule, thresholds),
        "floor": lambda rule: thresholds.min(),
    }
    found = in_turn([*ways], lambda way: timed(ways[way], rules), rounds)
    return {way: statistics.median(times) for way, times in found.items()}


def timed(way: Callable[[Rule], object], rules: Sequence[Rule]) -> float:
    """Return the microseconds per rule."""
    start = time.thread_time()
    for rule in rules:
        way(rule)
    return 1e6 * (time.thread_time() - start) / len(rules)


if __name__ == "__main__":
    run("replay", measure)
