"""What share of public fp16 training loops fails a check of loss scaling, as far as the source
shows?

`ampsim lint` read the loops of public repositories, each at one commit. `inputs/census.jsonl` has
the findings and no source code: repository, commit, path, sha256, line, features of the loop, and
violated rules. A loop is the innermost `for` or `while` around the step of a scaler, or the
function if the loop is elsewhere. Copies of a loop count once. The shares cover only what lint
detects: `docs/evaluation-lint.md` has its precision and recall.

Device: cpu.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampsim.core.json_lines import Record
from ampsim.lint.engine import RULES
from experiments import runner

DEVICES = ("cpu",)
INPUT = Path(__file__).parent / "inputs" / "census.jsonl"
KINDS = ("package", "example", "script")
HAS = {
    "schedule": "AMP101",
    "average": "AMP102",
    "clip": "AMP103",
    "checkpoint": "AMP112",
}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 1
    seeds: tuple[int, ...] = (0,)  # nothing is random


SMOKE = Config()


@dataclass(frozen=True)
class Arm:
    """A kind of repository: with a package to install, and outside its examples; its examples;
    scripts alone.
    """

    kind: str


def arms(config: Config) -> Mapping[str, Arm]:
    return {kind: Arm(kind) for kind in KINDS}


def inputs() -> dict[str, str]:
    return {INPUT.name: hashlib.sha256(INPUT.read_bytes()).hexdigest()}


def run(
    config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Count the loops of one kind; the columns are explained in `data/README.md`."""
    files: list[Row] = [json.loads(line) for line in INPUT.read_text().splitlines()]
    loops = {
        loop["digest"]: {**loop, "repository": file["repository"], "kind": file["kind"]}
        for file in reversed(files)
        for loop in file["loops"]
    }
    mine = [loop for loop in loops.values() if loop["kind"] == arm.kind]
    tick(config.steps)
    # Some loops break a rule that the lint has no more.
    wrong = [loop for loop in mine if RULES.keys() & loop["codes"]]
    return {
        "loops": len(mine),
        "repositories": repositories(mine),
        "wrong": {"loops": len(wrong), "repositories": repositories(wrong)},
        "of": {
            name: share([loop for loop in mine if name in loop["has"]], code)
            for name, code in HAS.items()
        },
    }


def repositories(loops: Sequence[Row]) -> list[str]:
    """Return the repositories of loops, sorted."""
    return sorted({loop["repository"] for loop in loops})


def share(loops: Sequence[Row], code: str) -> Record:
    """Return how many loops there are, and how many break a rule."""
    return {"loops": len(loops), "wrong": sum(code in loop["codes"] for loop in loops)}


if __name__ == "__main__":
    raise SystemExit(runner.main("census"))
