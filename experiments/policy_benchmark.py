"""Which loss-scale policy skips the fewest steps and leaves the least of fp16's range unused?

Every policy is replayed against the same overflow thresholds, those that `recorded_thresholds`
recorded in training. Each starts at the power of two below the first threshold. Four scores, each
per network: *skips* in per cent of the steps; *unused* bits between scale and threshold, on average
over finite steps; the longest *burst* of skips; and *recovery*: the threshold drops by 10 bits for
10 steps in the middle of the run, and recovery is the number of steps until the scale is within
half a bit of its value without the drop.

To enter a policy of your own, pass the import path of a class or a function without required
arguments that returns a `Rule` or an `ampsim.core.policies.Policy`:

    python -m experiments policy_benchmark --policy mymodule:MyPolicy --out mine.jsonl

`best_rule` is the rule of least cost among 10,000 on these same thresholds, chosen in hindsight.

Device: cpu.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from ampsim.core.json_lines import Record
from ampsim.core.machine import Rule, init, override
from ampsim.core.replay.sweep import sweep
from ampsim.core.replay.thresholds import index_thresholds, replay_thresholds
from ampsim.runs.record import data_file
from ampsim.testing.load import load
from experiments import runner
from experiments.recorded_thresholds import PER_BIT

DEVICES = ("cpu",)
RECORDED = runner.DATA / "cpu" / "recorded_thresholds.jsonl"
DROP_BITS, DROP_STEPS = 10, 10
PRICE = 0.01  # skips per step that an unused bit is worth to `best_rule`
SCORES = ("skips", "unused", "burst", "recovery")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 3000  # of each recorded run
    seeds: tuple[int, ...] = (0, 1, 2)  # of the recorded runs
    policy: str = ""  # import path of a policy of your own, module:Class


SMOKE = Config(steps=40, seeds=(0,))


@dataclass(frozen=True)
class Entry:
    """A policy as an import path, and its settings where they are not the defaults."""

    policy: str
    settings: tuple[tuple[str, Any], ...] = ()

    def make(self) -> Any:
        """Return the rule or policy.

        Raises:
            UsageError: The path names nothing, or nothing that makes a rule or policy.
        """
        try:
            make: Any = load(self.policy)
            machine = make(**dict(self.settings))
            init(machine)
        except (AttributeError, TypeError, ValueError) as error:
            raise runner.UsageError(
                f"policy={self.policy}: {error}; expected module:Class of a Rule or Policy"
            ) from error
        return machine


def entry(policy: str, **settings: Any) -> Entry:
    """Return an entry of ampsim's own."""
    module = "ampsim" if policy == "Rule" else "ampsim.core.policies"
    return Entry(f"{module}:{policy}", tuple(settings.items()))


OURS = {
    **{
        f"Rule G={interval}": entry("Rule", growth_interval=interval)
        for interval in (2000, 50, 5)
    },
    "Rule G=50 H=2": entry("Rule", growth_interval=50, hysteresis=2),
    "Rule G=50 k=2": entry("Rule", growth_interval=50, delay=2),
    "Deduplicated G=50 k=2": entry("Deduplicated", growth_interval=50, delay=2),
    "Probe G=50 k=2": entry("Probe", growth_interval=50, delay=2),
    "Headroom 1 bit": entry("Headroom", margin=1),
    "Headroom 3 bits": entry("Headroom", margin=3),
    "LogMax": entry("LogMax"),
    "LogMax as published": entry("LogMax", faithful=True),
    "best rule": Entry("experiments.policy_benchmark:best_rule"),
}


def arms(config: Config) -> dict[str, Entry]:
    """Return the policies by name; the path of one's own is tried before a unit runs."""
    if not config.policy:
        return OURS
    own = Entry(config.policy)
    own.make()
    return {**OURS, config.policy: own}


def inputs() -> dict[str, str]:
    return {RECORDED.stem: hashlib.sha256(RECORDED.read_bytes()).hexdigest()}


def run(
    config: Config, arm: Entry, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Score one policy; the columns are explained in `data/README.md`."""
    machine, scores = arm.make(), []
    traces = recorded()
    if seed not in traces:
        raise runner.UsageError(
            f"seed={seed}: expected one of {', '.join(map(str, traces))}"
        )
    for thresholds in traces[seed].values():
        scores.append(score(machine, thresholds[: config.steps]))
        tick(config.steps * len(scores) // len(traces[seed]))
    return {
        "rule": repr(machine),
        **{key: [row[key] for row in scores] for key in scores[0]},
    }


@cache
def recorded() -> Mapping[int, Mapping[str, Floats]]:
    """Return the recorded thresholds by seed and network, each of shape (steps,)."""
    traces: dict[int, dict[str, Floats]] = {}
    for row in data_file.read(RECORDED)[1]:
        log2 = np.array(row["thresholds"]) / PER_BIT
        traces.setdefault(row["seed"], {})[row["arm"]] = np.exp2(log2)
    return traces


def score(machine: Any, thresholds: Floats) -> Record:
    """Return the four scores of a rule or policy on one run."""
    scales = replayed(machine, thresholds)
    finite = scales <= thresholds
    bursts = [
        len(list(steps))
        for is_finite, steps in itertools.groupby(finite)
        if not is_finite
    ]
    unused = np.log2(thresholds[finite] / scales[finite])
    start = len(thresholds) // 2
    end = start + DROP_STEPS
    dropped = thresholds.copy()
    dropped[start:end] /= 2.0**DROP_BITS
    recovered = replayed(machine, dropped)[end:] > scales[end:] / math.sqrt(2)
    return {
        "skips": round(100 * float(1 - finite.mean()), 4),
        "unused": round(float(unused.mean()), 4) if unused.size else None,
        "burst": max(bursts, default=0),
        "recovery": int(recovered.argmax()) if recovered.any() else None,
    }


def replayed(machine: Any, thresholds: Floats) -> Floats:
    """Return the loss scale of each step, from the power of two below the first threshold on."""
    start = 2.0 ** math.floor(math.log2(thresholds[0]))
    state = override(machine, init(machine), start, synchronous=True)
    done = replay_thresholds(machine, thresholds, state=state)
    return np.concatenate(([done.first], done.scales()[:-1]))


def grid() -> Iterator[Rule]:
    """Generate 10,000 rules, from 2^18, near which the recorded thresholds start."""
    intervals = np.unique(np.geomspace(1, 2000, 60).astype(int)).tolist()  # 50 of them
    bits = (0.25, 0.5, 1, 2, 3)
    for interval, up, down, hysteresis in itertools.product(
        intervals, bits, (*bits, 4, 5, 6, 8, 10), (1, 2, 3, 4)
    ):
        yield Rule(2.0**18, 2.0**up, 2.0**-down, interval, hysteresis=hysteresis)


@cache
def best_rule() -> Rule:
    """Return the rule of `grid` of the least mean of skip rate + PRICE * unused bits over all
    recorded runs.
    """
    rules = list(grid())
    cost = np.zeros(len(rules))
    for traces in recorded().values():
        for thresholds in traces.values():
            rows = sweep(rules, index_thresholds(thresholds))
            unused = np.log2(thresholds).mean() - rows["mean_log2_scale"]
            cost += rows["skip_rate"] + PRICE * unused
    return rules[int(cost.argmin())]


def table(rows: Sequence[Record]) -> Table:
    """Return the mean scores of each policy over all runs; the longest burst; the median recovery,
    to which a run without one counts as inf.
    """
    shown = Table(
        "policy", "skips, %", "unused, bits", "longest burst", "median recovery, steps"
    )
    for name, units in itertools.groupby(rows, key=lambda row: str(row["arm"])):
        scores = [[unit[key] for key in SCORES] for unit in units]
        # (seeds, scores, networks); None becomes NaN.
        numbers = np.array(scores, dtype=float)
        skips, unused, burst, recovery = numbers.swapaxes(0, 1).reshape(len(SCORES), -1)
        recovered = np.median(np.nan_to_num(recovery, nan=math.inf))
        means = f"{skips.mean():.2f}", f"{np.nanmean(unused):.2f}"
        shown.add_row(name, *means, f"{burst.max():.0f}", f"{recovered:.0f}")
    return shown


if __name__ == "__main__":
    raise SystemExit(runner.main("policy_benchmark"))
