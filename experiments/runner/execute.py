"""From an experiment and its settings to a data file: reuse it, or run its units and write it."""

import dataclasses
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console

from ampsim import records
from experiments.runner import made_here, pool, provenance
from experiments.runner.experiment import Config, Experiment, Unit, UsageError
from experiments.runner.progress import Reporter, Slot


class UnitsFailedError(RuntimeError):
    """Some units raised, or their processes died; all others are kept."""


@dataclass(frozen=True)
class Options:
    """The way to run, which changes no result on one device."""

    device: Literal["cpu", "cuda"] = "cpu"  # where to compute
    smoke: bool = False  # a few steps, into a temporary folder
    jobs: int | None = None  # worker processes; default: up to 2 on cpu, 1 on cuda
    force: bool = False  # run again although the data is up to date
    reproduce: bool = False  # reuse only data that was made in this folder

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"jobs={self.jobs}: expected at least 1; leave --jobs out for the default")

    @property
    def processes(self) -> int:
        """Worker processes: one step is one thread, so two fill the two cores of a small machine."""
        return self.jobs or (min(2, os.cpu_count() or 1) if self.device == "cpu" and not self.smoke else 1)


@dataclass(frozen=True)
class Run:
    """One experiment with one configuration, bound for one file."""

    experiment: Experiment
    config: Config
    options: Options
    path: Path
    argv: list[str] = field(default_factory=list)
    committed: bool = False  # whether the path is that of the data that is committed

    @property
    def stem(self) -> str:
        """The experiment's name."""
        return self.experiment.stem

    @property
    def units(self) -> list[Unit]:
        """All units, in the order of the file."""
        return self.experiment.units(self.config)


@dataclass(frozen=True)
class Outcome:
    """The end of a run, and how its data stands to what was there before."""

    status: int  # of the process: 0 good, 1 a unit failed, 2 wrong use, 130 stopped by the user
    text: str
    written: bool = False  # the data file is another one now
    run: Run | None = None  # None if the command line asked for none that can be


def execute(run: Run, workers: pool.Workers, slot: Slot) -> Outcome:
    """Reuse the data if it is up to date; else run what the journal does not hold, and write what is new."""
    units, config = run.units, run.config.plain()
    inputs = run.experiment.module.inputs()
    wanted = run.options.force or (run.options.reproduce and not made_here.is_marked(run.path))
    if not wanted and reuse(run, config, inputs):
        return Outcome(0, "reused", run=run)
    before = made_here.earlier(run.path, config, inputs)
    origin = provenance.collect(run.stem, run.argv, config, inputs, run.options.device)
    journal = records.Journal(run.path, provenance.identity(origin))
    if journal.discarded:
        print(f"{run.stem}: unfinished run of other settings discarded: {journal.discarded}")
    elif journal.done:
        print(f"{run.stem}: resumed, {len(journal.done)} of {len(units)} units are done")
    start = time.monotonic()
    try:
        perform(run, units, journal, workers, slot)
    except KeyboardInterrupt:
        print(f"\n{run.stem}: stopped; {len(journal.done)} of {len(units)} units are kept in {journal.part}")
        print(f"{run.stem}: the same command goes on from there")
        return Outcome(130, "stopped")
    done = [journal.done[unit.key] for unit in units]
    origin |= {"date": provenance.now(), "unit_seconds": math.fsum(value["seconds"] for value in done)}
    outcome = keep_or_write(run, journal, origin, before)
    place = f"written to {run.path}" if outcome.written else "its file stays as it is"
    print(f"{run.stem}: {len(units)} units in {time.monotonic() - start:.0f} s, {outcome.text}, {place}")
    return outcome


def keep_or_write(
    run: Run, journal: records.Journal, origin: records.Record, before: made_here.Earlier | None
) -> Outcome:
    """Write the finished units, unless the file says the same already and its provenance is still true."""
    rows = [journal.done[unit.key]["record"] for unit in run.units]
    keep = before is not None and before.keeps(origin, rows)
    if keep:
        journal.part.unlink()
    else:
        journal.finish(origin, rows)
    if run.committed:
        made_here.mark(run.path)
    if not run.experiment.repeats:
        return Outcome(0, "measured anew", written=not keep, run=run)
    text = before.compare(rows) if before else "made for the first time"
    return Outcome(0, text, written=not keep, run=run)


def perform(run: Run, units: Sequence[Unit], journal: records.Journal, workers: pool.Workers, slot: Slot) -> None:
    """Run the missing units; each is on the disk before the next result is looked at.

    Raises:
        UnitsFailedError: after all others were run.
    """
    missing = [unit for unit in units if unit.key not in journal.done]
    jobs = [pool.Job(run.stem, run.config, unit, run.options.device) for unit in missing]
    failed: list[pool.Failed] = []
    progress = Reporter(run.stem, len(units), run.config.steps, len(journal.done), slot)
    for done in workers.run(jobs, run.options.processes, progress.step):
        if isinstance(done, pool.Failed):
            failed.append(done)
            print(f"{run.stem}: {done.unit.key} failed, the others go on: {done.reason}\n{done.details}",
                  file=sys.stderr)  # fmt: skip
            continue
        unit = {"arm": done.unit.arm, "seed": done.unit.seed, "settings": dataclasses.asdict(done.unit.settings)}
        record = unit | done.record
        journal.append(done.unit.key, {"seconds": round(done.seconds, 3), "record": record})
        progress.finish(done.unit.key)
    if failed:
        raise UnitsFailedError(
            f"{len(failed)} of {len(units)} units failed: {'; '.join(f.unit.key for f in failed)}. The others are kept "
            f"in {journal.part}; the same command runs those that are missing"
        )


def show(run: Run) -> None:
    """Print the table of an experiment that has one."""
    if hasattr(run.experiment.module, "table"):
        origin, rows = records.read(run.path)
        shown = run.experiment.module.table(rows)
        if isinstance(shown, str):
            print(shown)
        else:
            Console(width=max(120, Console().width), highlight=False).print(shown, markup=False)
        print(f"{run.stem}: measured on {origin['device']['name']}")


def reuse(run: Run, config: records.Record, inputs: dict[str, str]) -> bool:
    """Return True, and say so, when the file holds this config, these seeds and these inputs."""
    if not run.path.exists():
        return False
    origin, rows = records.read(run.path)
    if origin.get("config") != config or origin.get("inputs_sha256") != inputs:
        return False
    commit = (origin.get("commit") or "before the first commit")[:12]
    print(f"{run.stem}: reused, {len(rows)} units, from {commit}{' + changes' * bool(origin.get('dirty'))}")
    if origin.get("source_sha256") != provenance.source_sha256(run.stem):
        print(f"{run.stem}: its source has changed since; --force runs it again")
    return True
