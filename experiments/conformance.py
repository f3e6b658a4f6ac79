"""Which laws does each loss scaler keep, and which known defect does it have where it does not?

The conformance kit (`ampsim.testing`) judges torch's scaler, ours, ours with torch's own checks
(``exact_torch=True``), and ours at depth 1. Histories are drawn by hypothesis, always the same ones.

Device: cpu.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from rich.table import Table

from ampsim.records import Record
from ampsim.testing import Traits, known
from ampsim.testing.kit import judge
from ampsim.testing.kit.check import LEVELS
from ampsim.testing.kit.subject import Subject
from ampsim.torch import GradScaler
from experiments import runner

REQUIRES = ("hypothesis",)
DEVICES = ("cpu",)
LEVELS_AT_DEPTH_1 = (0, 2, 3, 4)  # refusals come later there, and torch's drop-in calls know no delay


@dataclass(frozen=True)
class Arm:
    """Torch's scaler, or ours with two of its options."""

    scaler: str  # one of MAKERS
    exact_torch: bool = False
    depth: int = 0


MAKERS: dict[str, Callable[[Arm], Callable[..., object]]] = {
    "torch": lambda arm: torch.amp.GradScaler,
    "ampsim": lambda arm: partial(GradScaler, exact_torch=arm.exact_torch, depth=arm.depth),
}
ARMS = {
    "torch": Arm("torch"),
    "ampsim": Arm("ampsim"),
    "ampsim policy=torch": Arm("ampsim", exact_torch=True),
    "ampsim depth=1": Arm("ampsim", depth=1),
}


def subject(arm: Arm) -> Subject:
    """Return the scaler as the kit takes it; without a delay it is held to torch's own words and bits."""
    return Subject(MAKERS[arm.scaler](arm), Traits(delay=arm.depth, drop_in=not arm.depth))


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 60  # examples per check
    seeds: tuple[int, ...] = (0,)  # the examples do not depend on it
    scalers: Annotated[tuple[str, ...], runner.one_of(ARMS)] = tuple(ARMS)


SMOKE = Config(steps=1, scalers=("ampsim depth=1",))


def arms(config: Config) -> Mapping[str, Arm]:
    return {name: ARMS[name] for name in config.scalers}


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Judge one scaler; the columns are explained in `data/README.md`."""
    torch.set_num_threads(1)
    checks = judge.chosen(LEVELS_AT_DEPTH_1 if arm.depth else range(len(LEVELS)))
    results = []
    for number, result in enumerate(judge.judge(subject(arm), checks, examples=config.steps), 1):
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
    """Return how many checks each scaler passes, and which it fails."""
    shown = Table("scaler", "passed", "failed", "which")
    for row in records:
        counts = row["counts"]
        shown.add_row(
            row["arm"], str(counts.get("passed", 0)), str(counts.get("failed", 0)), "\n".join(row["failed"]) or "none"
        )
    return shown


if __name__ == "__main__":
    raise SystemExit(runner.main("conformance"))
