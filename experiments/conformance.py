"""Which laws does each loss scaler keep, and which known defect does it have where it does not?

The conformance kit (`ampsim.testing`) judges torch's scaler, ours, ours with torch's own checks
(``exact_torch=True``), and ours at depth 1. Histories are drawn by hypothesis, always the same ones.

Takes about 40 s on one CPU core. Device: cpu.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table

from ampsim.core.machine import Rule
from ampsim.records import Record
from ampsim.testing import Traits, known
from ampsim.testing.kit import judge
from ampsim.testing.kit.check import LEVELS
from ampsim.testing.kit.subject import CONSTANTS, Subject
from ampsim.torch import GradScaler
from experiments import runner

REQUIRES = ("hypothesis",)
DEVICES = ("cpu",)
LEVELS_AT_DEPTH_1 = (0, 2, 3, 4)  # refusals come later there, and torch's drop-in calls know no delay


def make(cls: Callable[..., Any], **options: Any) -> Callable[[Rule], Any]:
    """A maker for the kit: a scaler with the rule's four constants."""
    return lambda rule: cls("cpu", *(getattr(rule, name) for name in CONSTANTS), **options)


SUBJECTS: dict[str, tuple[Subject, Sequence[int]]] = {
    "torch": (Subject(make(torch.amp.GradScaler)), range(len(LEVELS))),
    "ampsim": (Subject(make(GradScaler)), range(len(LEVELS))),
    "ampsim policy=torch": (Subject(make(GradScaler, exact_torch=True)), range(len(LEVELS))),
    "ampsim depth=1": (Subject(make(GradScaler, depth=1), Traits(delay=1)), LEVELS_AT_DEPTH_1),
}


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 60  # examples a check
    seeds: tuple[int, ...] = (0,)  # the examples do not depend on it
    scalers: tuple[str, ...] = tuple(SUBJECTS)


SMOKE = Config(steps=1, scalers=("ampsim depth=1",))


def arms(config: Config) -> list[str]:
    return [*config.scalers]


def inputs() -> dict[str, str]:
    return {}


def run(config: Config, unit: runner.Unit, device: str, tick: Callable[[int], None]) -> Record:
    """Judge one scaler; the columns are explained in `data/README.md`."""
    torch.set_num_threads(1)
    subject, levels = SUBJECTS[unit.arm]
    checks = judge.chosen(levels)
    results = []
    for number, result in enumerate(judge.judge(subject, checks, examples=config.steps), 1):
        results.append(result)
        tick(number * config.steps // len(checks))
    return {
        "checks": {result.check.name: {"level": result.check.level, "outcome": result.outcome} for result in results},
        "counts": dict(Counter(result.outcome for result in results)),
        "failed": {
            result.check.name: {
                "seen": result.text.partition("\n")[0],
                "issue": result.check.issue,
                "known": known.TORCH.get(result.check.name),
            }
            for result in results
            if result.outcome == "failed"
        },
    }


def table(records: Sequence[Record]) -> Table:
    """How many checks each scaler passes, and which it fails."""
    shown = Table("scaler", "passed", "failed", "which")
    for row in records:
        counts = row["counts"]
        shown.add_row(
            row["arm"], str(counts.get("passed", 0)), str(counts.get("failed", 0)), "\n".join(row["failed"]) or "none"
        )
    return shown


if __name__ == "__main__":
    raise SystemExit(runner.main("conformance"))
