"""Does the state machine reproduce the loss scales of public CUDA runs, and what do these show?

The data are the numbers of public training logs: DeepSpeed, Megatron-LM, fairseq, apex, and torch's
GradScaler, on 1 to 1,024 GPUs. `inputs/cuda_runs.md` is their data sheet. No network is trained.

A log shows the scale of some steps and some overflows, so all states that the state machine may be
in are followed from row to row (`corpus/follow.py`). A row that none of them can produce is a
break. The rule is that of the program, with the settings that the log, or else the program's
configuration, gives. Most rows repeat the scale of the row before, so their share has no power: the
score is the breaks among the *moves*, and the files without a break. The same is scored with the
defaults of the scaler where the log prints no setting. The control is the same rule
with a growth interval three times as long; other wrong intervals show how near a rival may be.

Device: cpu.
"""

import hashlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, cast

from ampsim.core import dialects
from ampsim.core.json_lines import Record
from ampsim.core.machine import Rule
from ampsim.core.theory import pathwise
from experiments import runner
from experiments.corpus import runs
from experiments.corpus.follow import Row, follow, unpacked

DEVICES = ("cpu",)
CONTROL = 3  # times the growth interval
RIVALS: Mapping[str, Callable[[int], int]] = {  # other wrong growth intervals
    "half": lambda interval: max(1, interval // 2),
    "one more": lambda interval: interval + 1,
    "twice": lambda interval: 2 * interval,
}
SHOWN, COLUMNS = 4, 150  # trajectories of an arm, and how fine they are
Points = list[
    tuple[int, float]
]  # step from the first one, or number of the row; log2 of the scale


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 20_000  # of a run, at most
    seeds: tuple[int, ...] = (0,)  # nothing is random


SMOKE = Config(steps=100)


@dataclass(frozen=True)
class Arm:
    """The runs of a program that were developed on, or that were held out."""

    program: str
    held_out: bool


def arms(config: Config) -> Mapping[str, Arm]:
    kinds = sorted({(run["held_out"], run["program"]) for run in runs.load()})
    return {
        program + ", held out" * held_out: Arm(program, held_out)
        for held_out, program in kinds
    }


def inputs() -> dict[str, str]:
    return {runs.INPUT.name: hashlib.sha256(runs.INPUT.read_bytes()).hexdigest()}


def run(
    config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Follow the runs of a program; the columns are explained in `data/README.md`."""
    kind = arm.program, arm.held_out
    mine = [each for each in runs.load() if (each["program"], each["held_out"]) == kind]
    rows = [judge(each, config.steps) for each in mine]
    tick(config.steps)
    trajectories = {i: outline(points_of(mine[i], config.steps)) for i in chosen(rows)}
    return {
        "runs": rows,
        "shown": [{"run": i, "points": p} for i, p in trajectories.items()],
    }


def judge(run: runs.Run, steps: int) -> Record:
    """Return what a run shows, and what the state machine makes of it."""
    shown = {
        name: run[name]
        for name in ("repository", "path", "model", "gpus", "zero", "rate")
    }
    points = points_of(run, 10**12)
    moves = sum(before != after for (_, before), (_, after) in pairwise(points))
    shown |= {
        "printed": run["printed"],
        "moves": moves,
        **settling(points, run["rows"]),
    }
    rule, unfit = runs.rule_of(run), runs.unfit(run)
    if unfit or rule is None:
        return {**shown, "verdict": unfit or "no rule"}
    rows, counts_skips = list(unpacked(run["rows"], steps)), runs.counts_skips(run)
    controlled = other(rule, lambda interval: CONTROL * interval)
    followed, control = (
        follow(each, rows, counts_skips=counts_skips) for each in (rule, controlled)
    )
    at_defaults = follow(default_rule(run, rule), rows, counts_skips=counts_skips)
    return {
        **shown,
        "verdict": "differs" if followed.breaks else "reproduced",
        "moves": followed.moves,
        "breaks": followed.breaks,
        "control": len(control.breaks),
        "defaults": len(at_defaults.breaks),
        "rivals": {
            name: len(
                follow(other(rule, wrong), rows, counts_skips=counts_skips).breaks
            )
            for name, wrong in RIVALS.items()
        },
        "growths": followed.growths,
        "restarts": followed.restarts,
        "interval": rule.growth_interval,
        "hysteresis": rule.hysteresis,
        **budget(rule, rows, restarts=followed.restarts),
    }


def default_rule(run: runs.Run, rule: Rule) -> Rule:
    """Return a rule with the interval that the log prints, else with the scaler's defaults."""
    defaults = dialects.get(runs.PROGRAMS[run["program"]].dialect)
    interval = run["interval"] or defaults.growth_interval
    return rule.replace(growth_interval=interval, max_scale=defaults.max_scale)


def other(rule: Rule, interval: Callable[[int], int]) -> Rule:
    """Return a rule with another growth interval."""
    return rule.replace(growth_interval=interval(rule.growth_interval))


def points_of(run: runs.Run, steps: int) -> Points:
    """Return the scales of a run by step, or by row if the log does not show the steps."""
    shown = (
        (row.step, row.before if row.after is None else row.after)
        for row in unpacked(run["rows"], steps)
    )
    points = [(step, bits) for step, bits in shown if bits is not None]
    known = [(step, bits) for step, bits in points if step is not None]
    steps_shown = [step for step, _ in known]
    if len(set(steps_shown)) < len(points) / 2 or steps_shown != sorted(steps_shown):
        return [(i, bits) for i, (_, bits) in enumerate(points)]
    return [(step - steps_shown[0], bits) for step, bits in known]


def settling(points: Points, rows: Sequence[Sequence[Any]]) -> Record:
    """Return where a run settles, as log2, and when it is first within a factor of two of it.

    This is the median of the last half of the scales. A log of overflows alone shows the scale
    after the last one.
    """
    scales = [bits for _, bits in points]
    settled = statistics.median(scales[len(scales) // 2 :])
    if all(len(row) < 4 for row in rows):
        settled = scales[-1]
    within = max(1, min(abs(bits - settled) for bits in scales))
    return {
        "settled": settled,
        "settled_at": next(
            step for step, bits in points if abs(bits - settled) <= within
        ),
        "lowest": min(scales),
        "highest": max(scales),
    }


def budget(rule: Rule, rows: Sequence[Row], *, restarts: int) -> Record:
    """Return the overflows of a log that shows them, and how many T1 and T10 allow; else nothing."""
    shown = [row for row in rows if row.after is not None]
    rows = rows[rows.index(shown[0]) + 1 :]
    skips = sum(row.is_overflow + (row.skipped or 0) for row in rows)
    numbers = [row.step for row in rows if row.step is not None]
    if restarts or not skips or len(numbers) < 2:
        return {}
    fall = cast("float", shown[0].after) - cast("float", shown[-1].after)
    uncounted = 0 if any(row.skipped for row in rows) else skips
    steps = numbers[-1] - numbers[0] + uncounted
    # Steps before the first row may have counted towards a growth. Each growth, and the start,
    # allows hysteresis - 1 overflows that take nothing from the scale.
    most = pathwise.skips(rule, steps + rule.growth_interval, fall)
    free = (rule.hysteresis - 1) * (1 + steps // rule.growth_interval)
    return {"skips": skips, "steps": steps, "most": most + free}


def chosen(rows: Sequence[Record]) -> list[int]:
    """Return the run with the most moves of each repository, those that are followed first."""
    order = sorted(
        range(len(rows)), key=lambda i: ("breaks" not in rows[i], -rows[i]["moves"])
    )
    kept: dict[str, int] = {}
    for i in order:
        kept.setdefault(rows[i]["repository"], i)
    return list(kept.values())[:SHOWN]


def outline(points: Points) -> Points:
    """Return the lowest and the highest scale of each of `COLUMNS` equal spans of a run."""
    width = max(1, points[-1][0]) / COLUMNS
    scale = itemgetter(1)
    kept: Points = []
    for _, span in groupby(points, key=lambda point: point[0] // width):
        column = list(span)
        kept += sorted({min(column, key=scale), max(column, key=scale)})
    return kept


if __name__ == "__main__":
    raise SystemExit(runner.main("cuda_runs"))
