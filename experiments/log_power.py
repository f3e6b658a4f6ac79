"""Which faults of a loss scaler does a log of its scales show?

A scaler with a fault runs on overflow thresholds that `recorded_thresholds` recorded in training,
and prints its scale every so many steps, or every hundred steps and at each overflow, as DeepSpeed
does. The state machine without the fault is followed through what is printed alone, as in
`cuda_runs`: no gradient or loss is known. The fault is *shown* if some printed scale is none that
the state machine can reach. "counts" is another test: theorem T1 on the number of overflows and on
the first and the last scale. "no fault" must never be shown.

Device: cpu. Nothing is trained.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ampsim.core.json_lines import Record
from ampsim.core.machine import Rule
from ampsim.core.theory import pathwise
from experiments import runner
from experiments.corpus.follow import Row, follow
from experiments.policy_benchmark import RECORDED, recorded

DEVICES = ("cpu",)


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 2000  # of a run
    seeds: tuple[int, ...] = (0, 1, 2)  # of the recorded runs
    growth_interval: int = 50
    printed_every: tuple[int, ...] = (1, 10, 100)  # steps between two printed scales


SMOKE = Config(steps=200, seeds=(0,), printed_every=(1, 10))


class Step(NamedTuple):
    """A step: log2 of the scale that it used, log2 of the newest scale after it, and its flag."""

    used: float
    after: float
    overflows: bool


@dataclass(frozen=True)
class Scaler:
    """A scaler with factors 2 and 1/2, and what may be wrong with it.

    Attributes:
        extra_steps: Finite steps that it waits beyond the interval.
        interval_times: Factor of the interval.
        updates: Updates per step, such as one for each of two optimizers.
        falls: Bits that an overflow takes.
        keeps_count: The events after which the growth tracker goes on: "overflow", "growth", or "".
        restarts: Steps between two restarts; 0 for none.
        loses: What a restart loses: "scale" (and the growth tracker), or "tracker".
        misses: Every so many steps an update is left out; 0 for none.
        delay: Steps by which a new scale is late.
    """

    extra_steps: int = 0
    interval_times: float = 1.0
    updates: int = 1
    falls: int = 1
    keeps_count: str = ""
    restarts: int = 0
    loses: str = ""
    misses: int = 0
    delay: int = 0

    def steps(self, thresholds: Sequence[float], interval: int) -> Iterator[Step]:
        """Yield the steps on log2 of overflow thresholds."""
        due = max(1, round(interval * self.interval_times) + self.extra_steps)
        bits = start = float(math.floor(thresholds[0]))
        tracker, used = 0, [bits] * (self.delay + 1)
        for step, threshold in enumerate(thresholds):
            if self.restarts and step and step % self.restarts == 0:
                bits, tracker = (start if self.loses == "scale" else bits), 0
            overflows = used[step] > threshold
            missed = self.misses and step % self.misses == self.misses - 1
            for _ in range(0 if missed else self.updates):
                bits, tracker = self._update(bits, tracker, due, overflows=overflows)
            yield Step(used[step], bits, overflows=overflows)
            used.append(bits)

    def _update(
        self, bits: float, tracker: int, due: int, *, overflows: bool
    ) -> tuple[float, int]:
        if overflows:
            return bits - self.falls, tracker if self.keeps_count == "overflow" else 0
        if tracker + 1 < due:
            return bits, tracker + 1
        return bits + 1, tracker if self.keeps_count == "growth" else 0


def arms(config: Config) -> Mapping[str, Scaler]:
    return {
        "no fault": Scaler(),
        "grows one step late": Scaler(extra_steps=1),
        "grows one step early": Scaler(extra_steps=-1),
        "interval twice as long": Scaler(interval_times=2),
        "interval half as long": Scaler(interval_times=0.5),
        "never grows": Scaler(interval_times=1000),
        "overflow does not reset the count": Scaler(keeps_count="overflow"),
        "growth does not reset the count": Scaler(keeps_count="growth"),
        "never backs off": Scaler(falls=0),
        "backs off by two bits": Scaler(falls=2),
        "two updates per step": Scaler(updates=2),
        "every tenth update is missed": Scaler(misses=10),
        "restart loses the scale": Scaler(restarts=333, loses="scale"),
        "restart loses the count": Scaler(restarts=333, loses="tracker"),
        "scale is one step late": Scaler(delay=1),
    }


def inputs() -> dict[str, str]:
    return {RECORDED.name: hashlib.sha256(RECORDED.read_bytes()).hexdigest()}


def run(
    config: Config, arm: Scaler, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Follow the right scaler through the scales of one; the columns are in `data/README.md`."""
    rule = Rule(growth_interval=config.growth_interval)
    runs = recorded()[seed]
    shown: Counter[str] = Counter()
    for thresholds in runs.values():
        log2 = [math.log2(threshold) for threshold in thresholds[: config.steps]]
        steps = list(arm.steps(log2, config.growth_interval))
        forms = {
            f"every {every}": every_rows(steps, every) for every in config.printed_every
        }
        for form, rows in {**forms, "overflows": overflow_rows(steps)}.items():
            shown[form] += bool(follow(rule, rows, counts_skips=True).breaks)
        shown["counts"] += exceeds_bound(rule, steps)
    tick(config.steps)
    return {"runs": len(runs), "shown": dict(shown)}


def exceeds_bound(rule: Rule, steps: Sequence[Step]) -> bool:
    """Return whether the number of overflows alone, with the first and last scale, is too large."""
    first, *later = steps
    skips = sum(step.overflows for step in later)
    # Steps before the first one may have counted towards a growth.
    counted = len(later) + rule.growth_interval
    return skips > pathwise.skips(rule, counted, first.after - later[-1].after)


def every_rows(steps: Sequence[Step], every: int) -> list[Row]:
    """Return what a log prints that shows the scale every so many steps."""
    return [Row(at, steps[at].after) for at in range(0, len(steps), every)]


def overflow_rows(steps: Sequence[Step], every: int = 100) -> list[Row]:
    """Return what a log prints that shows each overflow, with the scale before and after it, too."""
    rows: list[Row] = []
    for at, step in enumerate(steps):
        if step.overflows:
            rows += [
                Row(at - 1),
                Row(at, step.after, step.used, is_overflow=True),
                Row(at),
            ]
        elif at % every == 0:
            rows.append(Row(at, step.after))
    return rows


if __name__ == "__main__":
    raise SystemExit(runner.main("log_power"))
