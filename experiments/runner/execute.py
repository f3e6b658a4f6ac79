"""From an experiment and its settings to a data file: reuse it, or run its units and write it."""

import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ampsim.core.files import DamagedFileError, sole_writer
from ampsim.core.json_lines import Record
from ampsim.runs.record import data_file
from experiments.runner import device, pool, previous_data, provenance
from experiments.runner.experiment import Config, Experiment, Unit, UsageError
from experiments.runner.journal import Journal
from experiments.runner.progress import Bar, duration


class UnitsFailedError(RuntimeError):
    """Some units raised, or their processes ended; all others are kept."""


@dataclass(frozen=True)
class Options:
    """How to run; no option changes a result on one device."""

    device: Literal["cpu", "cuda"] = "cpu"  # device to compute on
    smoke: bool = False  # run a few steps and write to a temporary folder
    jobs: int | None = None  # worker processes; default: up to 2 on cpu, 1 on cuda
    check_figure: bool = (
        False  # check that the figures can draw these settings, and run nothing
    )
    force: bool = False  # run again even if the data is up to date
    reproduce: bool = (
        False  # write to build/here and compare with the committed records
    )

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(
                f"jobs={self.jobs}: expected at least 1; omit --jobs to use the default"
            )

    @property
    def processes(self) -> int:
        """Worker processes: a step uses one thread, so two processes use the two cores of a small
        machine.
        """
        return self.jobs or (
            min(2, os.cpu_count() or 1)
            if self.device == "cpu" and not self.smoke
            else 1
        )


@dataclass(frozen=True)
class Run:
    """One experiment with one configuration and one output file."""

    experiment: Experiment
    config: Config
    options: Options
    path: Path
    argv: list[str]
    reference: (
        Path  # the data to compare with: the file at `path`, or the committed file
    )

    @property
    def stem(self) -> str:
        """The experiment's name."""
        return self.experiment.stem


@dataclass(frozen=True)
class Outcome:
    """The end of a run, and how its data compares with earlier data."""

    status: int  # of the process: 0 success, 1 a unit failed, 2 invalid arguments, 130 interrupted
    text: str
    written: bool = False  # whether the data file was written


def execute(run: Run, workers: pool.Workers, bar: Bar) -> Outcome:
    """Reuse data that is up to date; else run the units that the journal lacks and write the file."""
    config, inputs = run.config.plain(), run.experiment.inputs()
    elsewhere = run.reference != run.path
    before = previous_data.earlier(
        run.reference, config, inputs, replaced=run.options.force or elsewhere
    )
    if before and not (run.options.force or elsewhere):
        dirty = " with uncommitted changes" * bool(before.origin.get("dirty"))
        print(
            f"{run.stem}: reused {len(before.rows)} units from {before.commit}{dirty}"
        )
        if before.origin.get("source_sha256") != provenance.source_sha256(run.stem):
            print(
                f"{run.stem}: the source has changed since; to run it again, pass --force"
            )
        return Outcome(0, "reused")
    origin = provenance.collect(run.stem, run.argv, config, inputs, run.options.device)
    units: Sequence[Unit] = run.experiment.units(run.config)
    if elsewhere and not run.options.force and previous_data.is_of(run.path, origin):
        print(f"{run.stem}: reused {len(units)} units from {run.path}")
        return Outcome(0, "reused")
    with sole_writer(run.path):
        return fill(run, units, origin, before, workers, bar)


def fill(
    run: Run,
    units: Sequence[Unit],
    origin: Record,
    before: previous_data.Earlier | None,
    workers: pool.Workers,
    bar: Bar,
) -> Outcome:
    """Run the units that the journal lacks, and write the file."""
    start = time.monotonic()
    journal = Journal(run.path, {name: origin[name] for name in provenance.IDENTITY})
    if journal.done:
        print(
            f"{run.stem}: resumed; {len(journal.done)} of {len(units)} units are done"
        )
    if run.options.reproduce and before and run.experiment.recomputed:
        copy_committed(run, units, journal, before)
    missing = len(units) - len(journal.done)
    try:
        perform(run, units, journal, workers, bar)
    except KeyboardInterrupt:
        print(
            f"\n{run.stem}: interrupted; kept {len(journal.done)} of {len(units)} units in {journal.part}"
        )
        print(f"{run.stem}: run the same command to continue")
        return Outcome(130, "stopped")
    done = [journal.done[unit.key] for unit in units]
    rows = [value["record"] for value in done]
    origin |= {
        "date": provenance.now(),
        "unit_seconds": math.fsum(value["seconds"] for value in done),
    }
    written = previous_data.write(
        run.path, origin, rows, before if run.reference == run.path else None
    )
    journal.part.unlink()
    text = "measured again" if before else "new"
    notes = [f"{missing} units computed in {duration(time.monotonic() - start)}"]
    if before and run.experiment.repeats:
        text = before.compare(rows)
        notes.append(text)
    notes.append(f"written to {run.path}" if written else f"{run.path} is unchanged")
    print(f"{run.stem}: {', '.join(notes)}")
    return Outcome(0, text, written=written)


def copy_committed(
    run: Run, units: Sequence[Unit], journal: Journal, before: previous_data.Earlier
) -> None:
    """Keep the committed record of each unit that a reproduction does not compute."""
    copied = 0
    for unit, row in zip(units, before.rows, strict=True):
        chosen = (
            unit.arm in run.experiment.recomputed and unit.seed == run.config.seeds[0]
        )
        if not chosen and unit.key not in journal.done:
            journal.append(unit.key, {"seconds": 0.0, "record": row})
            copied += 1
    print(f"{run.stem}: {copied} of {len(units)} units copied from {run.reference}")


def perform(
    run: Run,
    units: Sequence[Unit],
    journal: Journal,
    workers: pool.Workers,
    bar: Bar,
) -> None:
    """Run the missing units; each is written to disk before the next result is read.

    Raises:
        UnitsFailedError: A unit failed; raised after all other units have run.
    """
    missing = [unit for unit in units if unit.key not in journal.done]
    jobs = [
        pool.Job(run.stem, run.config, unit, run.options.device) for unit in missing
    ]
    ended = workers.run(jobs, run.options.processes, bar.step)
    failed: list[pool.Failed] = []
    expected = seconds_of(run.experiment, run.options, run.config)
    bar.count(run.stem, len(units), run.config.steps, len(journal.done), expected)
    for done in ended:
        if isinstance(done, pool.Failed):
            failed.append(done)
            text = f"{done.unit.key} failed, the other units continue: {done.reason}"
            print(f"{run.stem}: {text}\n{done.details}", file=sys.stderr)
            continue
        record = done.unit.named() | done.record
        journal.append(
            done.unit.key, {"seconds": round(done.seconds, 3), "record": record}
        )
        bar.finish(done.unit.key)
    if failed:
        raise UnitsFailedError(
            f"{len(failed)} of {len(units)} units failed: {'; '.join(f.unit.key for f in failed)}. The others are kept "
            f"in {journal.part}. Run the same command to retry the failed units"
        )


def seconds_of(
    experiment: Experiment, options: Options, config: Config | None = None
) -> float | None:
    """Return how long an experiment takes, from the CPU time in the provenance of committed data.

    Args:
        experiment: The experiment.
        options: The device, and the number of worker processes.
        config: Settings of the run, whose steps and seeds scale the time. Default: those of the
            committed data.

    Returns:
        Seconds, or None if no data of this device was made with these settings, or if a
        reproduction computes a part.
    """
    if options.reproduce and experiment.recomputed:
        return None
    try:
        path = experiment.data(device.slug(options.device))
        origin = data_file.read_provenance(path)
        factor = 1.0
        if config:
            then, now = dict(origin["config"]), config.plain()
            factor *= now.pop("steps") / then.pop("steps")
            factor *= len(now.pop("seeds")) / len(then.pop("seeds"))
            if then != now:
                return None
        seconds = factor * float(origin["unit_seconds"])
    except (FileNotFoundError, DamagedFileError, KeyError):
        return None
    return seconds / options.processes if experiment.repeats else seconds
