"""What do public logs of large fp16 runs show about the loss scale, and do they follow their dialect?

The data are seven excerpts from the chronicles of the 13B and 104B models that preceded BLOOM, and six
benchmark logs of the same repository. `inputs/public_runs.jsonl` has the printed numbers and their
location. No network is trained.

Theorem T1 bounds the number of overflows between two lines. The minimum is one per backoff that the
fall of the scale needs. The maximum is T1's budget, plus the steps that may have counted towards a
growth before the first line, plus one per full hysteresis. Divided by the steps of an excerpt, this is a
rate of overflows, which can be compared with T8's critical rate of steps that overflow at any scale.

Device: cpu.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from ampsim.core import dialects
from ampsim.core.json_lines import Record
from ampsim.core.machine import Rule
from ampsim.core.recorded_runs import with_current_names
from ampsim.core.replay.fold import replay
from ampsim.core.theory import pathwise, stochastic
from ampsim.runs import explain
from experiments import runner

DEVICES = ("cpu",)
INPUT = Path(__file__).parent / "inputs" / "public_runs.jsonl"
LOGS: dict[str, dict[str, Any]] = {
    log["name"]: log for log in map(json.loads, INPUT.read_text().splitlines())
}


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 20  # lines of a log, at most
    seeds: tuple[int, ...] = (0,)  # nothing is random


SMOKE = Config(steps=5)


@dataclass(frozen=True)
class Arm:
    """An excerpt of a log: its lines are in the input file."""

    name: str
    dialect: str
    growth_interval: int


def arms(config: Config) -> Mapping[str, Arm]:
    return {
        name: Arm(name, log["dialect"], rule_of(log).growth_interval) for name, log in LOGS.items()
    }


def inputs() -> dict[str, str]:
    return {INPUT.name: hashlib.sha256(INPUT.read_bytes()).hexdigest()}


def rule_of(log: Mapping[str, Any]) -> Rule:
    """Return the rule that the run's settings name, from the scale that its first line prints."""
    return dialects.get(
        log["dialect"],
        **{"init_scale": log["scale"][0], **with_current_names(log["dialect"], log["parameters"])},
    )


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Judge one excerpt; the columns are explained in `data/README.md`."""
    log = {
        name: value[: config.steps] if isinstance(value, list) else value
        for name, value in LOGS[arm.name].items()
    }
    rule, explanation = rule_of(log), explain(lines(log))
    flags = overflows(log)
    tick(config.steps)
    return {
        "source": log["source"],
        "step": log["step"],
        "log2_scale": [math.log2(scale) for scale in log["scale"]],
        "skips_printed": log["skips_printed"],
        "overflow_steps": log["overflows_printed"],
        "replayed": None
        if flags is None
        else [math.log2(scale) for scale in replayed(rule, log, flags)],
        "windows": [window(rule, *pair) for pair in pairs(log)],
        "whole": window(rule, *whole(log)),
        "findings": [finding.id for finding in explanation.problems],
        "skips_proved": sum(count for _, _, count, *_ in explanation.skips),
        "critical_rate": stochastic.critical_bad_rate(rule),
    }


def pairs(log: Mapping[str, Any]) -> Iterator[tuple[int, int, float]]:
    """Yield the steps of each two neighbouring lines, and by how many bits the scale fell from one to the other."""
    points = list(zip(log["step"], np.log2(log["scale"]), strict=True))
    for (first, before), (last, after) in itertools.pairwise(points):
        yield first, last, before - after


def whole(log: Mapping[str, Any]) -> tuple[int, int, float]:
    """Return the first and the last step, and by how many bits the scale fell between them."""
    return log["step"][0], log["step"][-1], math.log2(log["scale"][0] / log["scale"][-1])


def window(rule: Rule, first: int, last: int, descent: float) -> Record:
    """Return how many overflows lie between two lines, at least and at most, by T1."""
    steps, interval = last - first, rule.growth_interval
    budget = math.floor(pathwise.skips(rule, steps + interval - 1, descent))
    free = (rule.hysteresis - 1) * (
        2 + steps // interval
    )  # overflows that only use up a full hysteresis
    return {
        "first": first,
        "last": last,
        "descent": descent,
        "least": max(0, round(descent)),
        "most": min(steps, budget + free),
    }


def overflows(log: Mapping[str, Any]) -> list[bool] | None:
    """Return a flag per step, where the log tells enough: it names the steps, or prints skips that are not all 0.

    Between two lines that print only their number the overflows come first; the scales of the lines do not depend
    on it, as no growth lies there.
    """
    steps, named = log["step"], log["overflows_printed"]
    if named:
        return [step in named for step in range(steps[0] + 1, steps[-1] + 1)]
    if not any(log["skips_printed"]):
        return None
    lengths = np.diff([0, *steps])
    return [
        n < k
        for length, k in zip(lengths, log["skips_printed"], strict=True)
        for n in range(length)
    ]


def replayed(rule: Rule, log: Mapping[str, Any], flags: Sequence[bool]) -> list[float]:
    """Return the machine's scale at each line, the first line's own included."""
    scales, last = replay(rule, flags).tolist(), log["step"][-1]
    after = dict(zip(range(last - len(flags) + 1, last + 1), scales, strict=True))
    return [after.get(step, rule.init_scale) for step in log["step"]]


def lines(log: Mapping[str, Any]) -> Iterator[str]:
    """Yield the excerpt in the form of its program, for `ampsim explain`."""
    named = log["overflows_printed"] or ()
    columns = zip(log["step"], log["scale"], log["skips_printed"], log["loss"], strict=True)
    before = log["scale"][0]
    for step, scale, skips, loss in columns:
        if step in named:
            yield f"OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {before}, reducing to {scale}"
        said = "" if loss is None else f"lm loss: {loss:.6E} | "
        yield f" iteration {step:8d}/  159576 | {said}loss scale: {scale} | number of skipped iterations: {skips:3d} |"
        before = scale


def table(rows: Sequence[Record]) -> Table:
    """Return one line per excerpt: its scales, whether the machine repeats them, the overflows between its lines."""
    shown = Table("excerpt", "log2 scale", "repeated", "overflows", "steps", "printed", "explain")
    for row in rows:
        equal = "yes" if row["replayed"] == row["log2_scale"] else "NO"
        repeated = "not told" if row["replayed"] is None else equal
        least, most = sum(each["least"] for each in row["windows"]), row["whole"]["most"]
        found = ", ".join(row["findings"]) or "healthy"
        shown.add_row(
            row["arm"], f"{row['log2_scale'][0]:g} to {row['log2_scale'][-1]:g}", repeated, f"{least} to {most}",
            str(row["step"][-1] - row["step"][0]), str(sum(row["skips_printed"])), found,
        )  # fmt: skip
    return shown


if __name__ == "__main__":
    raise SystemExit(runner.main("public_runs"))
