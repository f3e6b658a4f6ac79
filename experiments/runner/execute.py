"""From an experiment and its settings to a data file: reuse it, or run its units and write it."""

import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ampsim import records
from ampsim.records import Record
from experiments.runner import made_here, pool, provenance
from experiments.runner.experiment import Config, Experiment, Unit, UsageError
from experiments.runner.progress import Bar


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
    argv: list[str]
    committed: bool  # whether the path is that of the data that is committed

    @property
    def stem(self) -> str:
        """The experiment's name."""
        return self.experiment.stem


@dataclass(frozen=True)
class Outcome:
    """The end of a run, and how its data stands to what was there before."""

    status: int  # of the process: 0 good, 1 a unit failed, 2 wrong use, 130 stopped by the user
    text: str
    written: bool = False  # the data file is another one now


def execute(run: Run, workers: pool.Workers, bar: Bar) -> Outcome:
    """Reuse the data if it is up to date; else run what the journal does not hold, and write what is new."""
    config, inputs = run.config.plain(), run.experiment.inputs()
    wanted = run.options.force or (run.options.reproduce and not made_here.is_marked(run.path))
    before = made_here.earlier(run.path, config, inputs, replaced=wanted)
    if before and not wanted:
        dirty = " + changes" * bool(before.origin.get("dirty"))
        print(f"{run.stem}: reused, {len(before.rows)} units, from {before.commit}{dirty}")
        if before.origin.get("source_sha256") != provenance.source_sha256(run.stem):
            print(f"{run.stem}: its source has changed since; --force runs it again")
        return Outcome(0, "reused")
    units, start = run.experiment.units(run.config), time.monotonic()
    origin = provenance.collect(run.stem, run.argv, config, inputs, run.options.device)
    journal = records.Journal(run.path, {name: origin[name] for name in provenance.IDENTITY})
    for part, difference in journal.others().items():
        print(f"{run.stem}: unfinished run of other settings kept in {part}: {difference}")
    if journal.done:
        print(f"{run.stem}: resumed, {len(journal.done)} of {len(units)} units are done")
    try:
        perform(run, units, journal, workers, bar)
    except KeyboardInterrupt:
        print(f"\n{run.stem}: stopped; {len(journal.done)} of {len(units)} units are kept in {journal.part}")
        print(f"{run.stem}: the same command goes on from there")
        return Outcome(130, "stopped")
    done = [journal.done[unit.key] for unit in units]
    origin |= {"date": provenance.now(), "unit_seconds": math.fsum(value["seconds"] for value in done)}
    outcome = keep_or_write(run, journal, origin, [value["record"] for value in done], before)
    place = f"written to {run.path}" if outcome.written else "its file stays as it is"
    print(f"{run.stem}: {len(units)} units in {time.monotonic() - start:.0f} s, {outcome.text}, {place}")
    return outcome


def keep_or_write(
    run: Run, journal: records.Journal, origin: Record, rows: Sequence[Record], before: made_here.Earlier | None
) -> Outcome:
    """Write the finished units, unless the file says the same already and its provenance is still true."""
    keep = before is not None and before.keeps(origin, rows)
    if keep:
        journal.part.unlink()
    else:
        journal.finish(origin, rows)
    if run.committed:
        made_here.mark(run.path)
    text = before.compare(rows) if before else "made for the first time"
    return Outcome(0, text if run.experiment.repeats else "measured anew", written=not keep)


def perform(run: Run, units: Sequence[Unit], journal: records.Journal, workers: pool.Workers, bar: Bar) -> None:
    """Run the missing units; each is on the disk before the next result is looked at.

    Raises:
        UnitsFailedError: after all others were run.
    """
    missing = [unit for unit in units if unit.key not in journal.done]
    jobs = [pool.Job(run.stem, run.config, unit, run.options.device) for unit in missing]
    failed: list[pool.Failed] = []
    bar.count(run.stem, len(units), run.config.steps, len(journal.done))
    for done in workers.run(jobs, run.options.processes, bar.step):
        if isinstance(done, pool.Failed):
            failed.append(done)
            text = f"{done.unit.key} failed, the others go on: {done.reason}"
            print(f"{run.stem}: {text}\n{done.details}", file=sys.stderr)
            continue
        record = done.unit.named() | done.record
        journal.append(done.unit.key, {"seconds": round(done.seconds, 3), "record": record})
        bar.finish(done.unit.key)
    if failed:
        raise UnitsFailedError(
            f"{len(failed)} of {len(units)} units failed: {'; '.join(f.unit.key for f in failed)}. The others are kept "
            f"in {journal.part}; the same command runs those that are missing"
        )
