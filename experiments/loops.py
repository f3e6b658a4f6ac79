"""Do the training loops of real frameworks pass the checks, and does each seeded fault fail one?

Each framework's own loop trains a tiny model in float32 with the scaler of
`ampsim.testing.check_loop`. `experiments.frameworks` describes each loop and its data. A framework
that is not installed does not run: its record is the committed one, with version and date, or names
the package to install. The seeded faults are loops from public threads; each runs the check that
should catch it. Device: cpu.
"""

import gc
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import torch

from ampsim.core.json_lines import Record
from ampsim.runs.record import data_file
from ampsim.testing.loop.judge import judge_loop
from experiments import runner
from experiments.bugs.loops import BUGS
from experiments.frameworks import FRAMEWORKS, Framework, tiny

REPEATS = False  # it measures time, and its records depend on installed packages
DEVICES = ("cpu",)
SAID = {"passed": "holds", "failed": "broken", "skipped": "not asked"}


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 4  # batches
    seeds: tuple[int, ...] = (0,)  # a check needs no second
    frameworks: Annotated[tuple[str, ...], runner.one_of(FRAMEWORKS)] = tuple(
        FRAMEWORKS
    )
    bugs: Annotated[tuple[str, ...], runner.one_of(BUGS)] = tuple(BUGS)


@dataclass(frozen=True)
class Arm:
    """One of `FRAMEWORKS`, or all bugs."""

    framework: str | None


SMOKE = Config(steps=3, frameworks=("torch",), bugs=("relax_44_unscaled_twice",))


def arms(config: Config) -> Mapping[str, Arm]:
    return {**{name: Arm(name) for name in config.frameworks}, "bugs": Arm(None)}


def run(
    config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Judge a framework, or every bug; the columns are explained in `data/README.md`."""
    with quietly():
        if arm.framework is None:
            caught(
                config.bugs[0], config.steps
            )  # what torch loads in the first step is not measured
            return {"bugs": {name: caught(name, config.steps) for name in config.bugs}}
        framework = FRAMEWORKS[arm.framework]
        if framework.version is None:
            return earlier(arm.framework) or {
                "version": None,
                "date": None,
                "checks": {},
                "not_run": framework.package,
            }
        return judged(framework, config.steps)


@contextmanager
def quietly() -> Iterator[None]:
    """Hide what frameworks say of each other; leave one thread, no process group, and no old
    objects to collect.
    """
    torch.set_num_threads(1)
    gc.freeze()  # the Trainer collects garbage before each step
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        gc.unfreeze()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def judged(framework: Framework, steps: int) -> Record:
    """Return what each check says of a framework's loop."""
    checks = {
        result.check.name: {
            "outcome": SAID[result.outcome],
            "seen": result.text.partition("\n")[0],
            "known": framework.expected.get(result.check.name),
        }
        for result in judge_loop(framework.make, framework.batches[:steps])
    }
    return {
        "version": framework.version,
        "date": str(datetime.now(UTC).date()),
        "checks": checks,
        "not_run": None,
    }


def earlier(name: str) -> Record | None:
    """Return the committed record of a framework that was run, without what the runner adds; None
    if there is none.
    """
    path = runner.DATA / "cpu" / "loops.jsonl"
    rows = data_file.read(path)[1] if path.exists() else ()
    found = [row for row in rows if row["arm"] == name and row["version"]]
    return (
        {key: found[0][key] for key in ("version", "date", "checks", "not_run")}
        if found
        else None
    )


def caught(name: str, steps: int) -> Record:
    """Return whether the check that should catch a bug does, and how long that takes."""
    bug, begun = BUGS[name], time.process_time()
    (result,) = judge_loop(bug.make, tiny.batches(steps), [bug.check])
    ms, seen = 1000 * (time.process_time() - begun), result.text.partition("\n")[0]
    return {
        "thread": bug.link,
        "check": bug.check,
        "caught": result.outcome == "failed",
        "seen": seen,
        "ms": ms,
    }


if __name__ == "__main__":
    raise SystemExit(runner.main("loops"))
