"""What would another rule have done, and how fast is a replay from event to event against one step by step?

A trace has one number per step: the largest scale at which it would not have overflowed. Side by side in one run
and interleaved, with growth interval 2000: a step-by-step loop compiled by numba; `replay_ceilings` over a trace
that was indexed before; the index alone; and both, which is what the first rule costs. Then `replay_ceilings`
without numba, and a sweep of 10 000 rules. Two traces of a million steps, made from a seed: the logarithm walks
and each step has noise; or there is less noise, one step in 500 has a spike, and one in 50 000 always overflows.

Takes ten seconds on one CPU core, in one unit so that no second unit runs beside it. Device: cpu, where
the clock is the thread's CPU time, which other processes on a shared machine do not enter.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from ampsim import Rule, init, replay_ceilings
from ampsim.core.replay import engine
from ampsim.core.replay.ceilings import CeilingIndex, index_ceilings, run_events
from ampsim.core.replay.sweep import sweep
from ampsim.records import Record
from experiments import runner
from experiments.timing.rounds import spread

REPEATS = False  # it measures time
REQUIRES = ("numba",)
TRACES = ("walk", "spikes")
Trace = npt.NDArray[np.float32]
DEVICES = ("cpu",)


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 1_000_000  # of a trace
    seeds: tuple[int, ...] = (0,)  # of the traces
    trials: int = 75
    rules: int = 16  # per trial; no two alike, or the processor would learn one replay's branches by heart
    grid: tuple[int, int, int] = (100, 10, 10)  # of the sweep: growth intervals, growth factors, backoff factors


SMOKE = Config(steps=20_000, trials=1, rules=2, grid=(4, 2, 2))


def arms(config: Config) -> Mapping[str, runner.Single]:
    return {"numba": runner.Single()}


def run(config: Config, arm: runner.Single, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Measure on every trace, then sweep over the first."""
    rng = np.random.default_rng(seed)
    traces = {name: trace(name, config.steps, rng) for name in TRACES}
    rows = []
    for name, ceilings in traces.items():
        rows.append({"trace": name, **measure(ceilings, config)})
        tick(config.steps * len(rows) // len(traces))
    return {"clock": "thread CPU time", "rows": rows, "sweep": measure_sweep(traces["walk"], config.grid)}


def trace(name: str, steps: int, rng: np.random.Generator) -> Trace:
    """Return ceilings whose log2 walks around 17 and returns to where it began."""
    walk = np.cumsum(rng.normal(0, 5 / steps**0.5, steps))  # 5 bits a trace
    walk -= np.linspace(0, walk[-1], steps)
    log2 = 17 + walk + rng.normal(0, 0.3 if name == "walk" else 0.1, steps)
    if name == "spikes":
        log2 -= rng.exponential(4, steps) * (rng.random(steps) < 1 / 500)
        log2[rng.random(steps) < 1 / 50_000] = -np.inf
    ceilings: Trace = np.exp2(log2).astype(np.float32)
    return ceilings


def rules(count: int) -> list[Rule]:
    """Return rules of torch's kind, with growth interval 2000 within 1 %."""
    return [Rule(2.0 ** (12 + i % 8), growth_interval=2000 - count // 2 + i) for i in range(count)]


def fold(
    ceilings: Trace,
    scale: float,
    growth: float,
    backoff: float,
    interval: int,
    skipped: npt.NDArray[np.int64],
    steps: npt.NDArray[np.int64],
    scales: npt.NDArray[np.float64],
) -> tuple[int, int, float]:
    """Fold the plain machine step by step; return (skips, changes, last scale) and write them into the arrays.

    The fastest of three that were tried: it holds the scale in float32 as the trace does, and counts no streak
    but keeps the step at which the growth is due. With a streak it takes 1.2 times as long.
    """
    held: Any = np.float32(scale)
    due, skips, changes = interval, 0, 0
    for step in range(np.uint64(len(ceilings))):  # unsigned: no test for an index from the end
        overflow = held > ceilings[step]
        if overflow or np.int64(step) + 1 == due:
            due = int(np.int64(step)) + 1 + interval
            if overflow:
                skipped[skips] = step
                skips += 1
                held = np.float32(np.float64(held) * backoff)
                steps[changes], scales[changes] = step, held
                changes += 1
            else:
                grown = np.float32(np.float64(held) * growth)
                if grown < np.inf:
                    held = grown
                    steps[changes], scales[changes] = step, held
                    changes += 1
    return skips, changes, float(held)


class Fold:
    """`fold`, compiled, with room for its results, made once."""

    def __init__(self, ceilings: Trace) -> None:
        self.ceilings = ceilings
        self.compiled: Any = numba.njit(fold)
        self.skipped, self.steps = np.empty(len(ceilings), np.int64), np.empty(len(ceilings), np.int64)
        self.scales = np.empty(len(ceilings))

    def __call__(self, rule: Rule) -> tuple[int, int, float]:
        numbers = (rule.init_scale, rule.growth_factor, rule.backoff_factor, rule.growth_interval)
        done: tuple[int, int, float] = self.compiled(self.ceilings, *numbers, self.skipped, self.steps, self.scales)
        return done


def fastest_fold(ceilings: Trace, family: Sequence[Rule], copies: int) -> Fold:
    """Return the fastest of several copies: where the compiler puts a loop decides over a third of its time."""
    made = [Fold(ceilings) for _ in range(copies)]
    for copy in made:
        copy(family[0])  # compiles
    return min(made, key=lambda copy: timed(copy, family))


def measure(ceilings: Trace, config: Config) -> Record:
    """Return microseconds per rule of each way, one number per trial; one round before to compile and to compare."""
    family, index = rules(config.rules), index_ceilings(ceilings)
    stepwise = fastest_fold(ceilings, family, min(6, config.trials))
    skips = [check(stepwise, index, rule) for rule in family]
    ways: dict[str, Callable[[Rule], object]] = {
        "fold": stepwise,
        "replay": lambda rule: replay_ceilings(rule, index),
        "index": lambda rule: index_ceilings(ceilings),
        "index and replay": lambda rule: replay_ceilings(rule, ceilings),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(config.trials):
        for name, way in ways.items():
            times[name].append(timed(way, family))
    slow = timed(lambda rule: run_events(rule, index, init(rule), engine.PYTHON), family[:2])
    return {"steps": len(ceilings), "skips": skips, "microseconds": times, "without numba": slow}


def check(stepwise: Fold, index: CeilingIndex, rule: Rule) -> int:
    """Return the skips of a rule, which both ways must agree on, as on every scale."""
    done = replay_ceilings(rule, index)
    skips, changes, last = stepwise(rule)
    same = (
        np.array_equal(done.skipped, stepwise.skipped[:skips])
        and np.array_equal(done.scale_changes["step"], stepwise.steps[:changes])
        and np.array_equal(done.scale_changes["scale"], stepwise.scales[:changes])
        and done.state.scale == last
    )
    if not same:
        raise RuntimeError(f"{rule}: expected the same from both ways; a ratio of their times would mean nothing")
    return skips


def timed(way: Callable[[Rule], object], family: Sequence[Rule]) -> float:
    """Return the microseconds per rule."""
    start = time.thread_time()
    for rule in family:
        way(rule)
    return round(1e6 * (time.thread_time() - start) / len(family), 2)


def grid(shape: tuple[int, int, int]) -> Iterator[Rule]:
    """Yield rules with growth intervals from 100 to 20 000, and factors from 2^0.1 to 4 and from 2^-0.1 to 1/4."""
    intervals = np.geomspace(100, 20_000, shape[0]).round().astype(int).tolist()
    growths, backoffs = (2.0 ** np.linspace(0.1, 2, count) for count in shape[1:])
    for interval, growth, backoff in itertools.product(intervals, growths.tolist(), backoffs.tolist()):
        yield Rule(growth_factor=growth, backoff_factor=1 / backoff, growth_interval=interval)


def measure_sweep(ceilings: Trace, shape: tuple[int, int, int]) -> Record:
    """Measure the seconds of everything: making the rules, the index, the replays, the rows."""
    start = time.thread_time()
    rows = sweep(grid(shape), ceilings)
    seconds = time.thread_time() - start
    speed = len(rows) * len(ceilings) / seconds
    return {"rules": len(rows), "seconds": round(seconds, 3), "skips": int(rows["skips"].sum()), "speed": speed}


def summary(row: Record) -> Record:
    """Return medians in microseconds, rule-steps per second, and the fold's time over ours in each trial."""
    times = row["microseconds"]
    medians = {name: statistics.median(values) for name, values in times.items()}
    medians["without numba"] = row["without numba"]
    ratios = {
        name: [fold / ours for fold, ours in zip(times["fold"], times[name], strict=True)]
        for name in ("replay", "index and replay")
    }
    speeds = {name: 1e6 * row["steps"] / median for name, median in medians.items()}
    return {"medians": medians, "ratios": ratios, "speeds": speeds}


def table(records: Sequence[Record]) -> str:
    """Return what is printed after a run: medians, and the ratio's median, lowest and highest trial."""
    lines = [f"{'trace':<10}{'way':<20}{'us':>9}{'rule-steps/s':>15}   fold / this (lowest to highest trial)"]
    (record,) = records
    for row in record["rows"]:
        found = summary(row)
        for name, median in found["medians"].items():
            ratios = found["ratios"].get(name, [])
            line = f"{row['trace']:<10}{name:<20}{median:9.1f}{found['speeds'][name]:15.2e}   {spread(ratios, 1)}"
            lines.append(line.rstrip())
    many = record["sweep"]
    lines.append(
        f"sweep of {many['rules']} rules, all included: {many['seconds']:.2f} s, {many['speed']:.2e} rule-steps/s"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(runner.main("replay_speed"))
