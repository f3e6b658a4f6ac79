"""From an experiment and its settings to a data file: reuse it, or run its units and write it."""

import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ampsim.core.files import BusyError, sole_writer
from ampsim.core.json_lines import Record
from experiments.runner import pool, previous_data, provenance
from experiments.runner.experiment import Config, Experiment, Unit, UsageError
from experiments.runner.journal import Journal
from experiments.runner.progress import Units, duration


class UnitsFailedError(RuntimeError):
    """Some units raised, or a process ended; all others are kept."""


@dataclass(frozen=True)
class Options:
    """How to run; no option changes a result on one device."""

    device: Literal["cpu", "cuda"] = "cpu"  # device to compute on
    smoke: bool = False  # run a few steps and write to a temporary folder
    jobs: int | None = None  # worker processes; default: up to 2 on cpu, 1 on cuda
    # check that the figures can draw these settings, and run nothing
    check_figure: bool = False
    force: bool = False  # run again even if the data is up to date
    # write to build/here and compare with the committed records
    reproduce: bool = False

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
        if self.jobs:
            return self.jobs
        if self.device != "cpu" or self.smoke:
            return 1
        return min(2, os.cpu_count() or 1)


@dataclass(frozen=True)
class Run:
    """One experiment with one configuration and one output file."""

    experiment: Experiment
    config: Config
    options: Options
    path: Path
    argv: list[str]
    reference: Path  # data to compare with: the file at `path`, or the committed file

    @property
    def stem(self) -> str:
        """The experiment's name."""
        return self.experiment.stem

    @property
    def is_elsewhere(self) -> bool:
        """Whether the file is another one than what it is compared with."""
        return self.reference != self.path


@dataclass(frozen=True)
class Outcome:
    """The end of a run, and how its data compares with earlier data."""

    status: int  # of the process: 0 success, 1 a unit failed, 2 invalid arguments, 130 interrupted
    text: str
    seconds: float = 0.0  # CPU time of the units
    written: bool = False  # whether the data file was written


def execute(run: Run, workers: pool.Workers) -> Outcome:
    """Reuse data that is up to date; else run the units that the journal lacks and write the file."""
    stem, config, inputs = run.stem, run.config.plain(), run.experiment.inputs()
    replaced = run.options.force or run.is_elsewhere
    before = previous_data.earlier(run.reference, config, inputs, replaced=replaced)
    origin = provenance.collect(stem, run.argv, config, inputs, run.options.device)
    reused = reusable(run, origin, before)
    if reused:
        print(f"{stem}: reused {reused}")
        return Outcome(0, "reused")
    with sole_writer(run.path):
        return fill(run, origin, before, workers)


def reusable(
    run: Run, origin: Record, before: previous_data.Earlier | None
) -> str | None:
    """Return in words which units are there already; None if they are to be computed."""
    if run.options.force:
        return None
    if run.is_elsewhere:
        is_finished = previous_data.is_of(run.path, origin)
        return f"the units of {run.path}" if is_finished else None
    if before is None:
        return None
    units = f"{len(before.rows)} units from {before.commit}"
    if before.origin.get("source_sha256") == origin["source_sha256"]:
        return units
    return f"{units}\n{run.stem}: the source has changed since; to run it again, pass --force"


def fill(
    run: Run,
    origin: Record,
    before: previous_data.Earlier | None,
    workers: pool.Workers,
) -> Outcome:
    """Run the units that the journal lacks, and write the file."""
    start, stem, units = time.monotonic(), run.stem, run.experiment.units(run.config)
    identity = {name: origin[name] for name in provenance.IDENTITY}
    identity["library_sha256"] = provenance.library_sha256()
    journal = Journal(run.path, identity)
    if journal.done:
        print(f"{stem}: resumed; {len(journal.done)} of {len(units)} units are done")
    if run.options.reproduce and before and run.experiment.recomputed:
        copy_committed(run, units, journal, before)
    missing = [unit for unit in units if unit.key not in journal.done]
    try:
        perform(run, missing, journal, workers)
    except KeyboardInterrupt:
        print(
            f"\n{stem}: interrupted; kept {len(journal.done)} of {len(units)} units in "
            f"{journal.part}; run the same command to continue"
        )
        return Outcome(130, "stopped")
    outcome = write(run, origin, before, [journal.done[unit.key] for unit in units])
    journal.part.unlink()
    print(_summary(run, outcome, len(missing), time.monotonic() - start))
    return outcome


def write(
    run: Run,
    origin: Record,
    before: previous_data.Earlier | None,
    finished: Sequence[Record],
) -> Outcome:
    """Write the finished units, unless the file can stay, and compare them with earlier data."""
    rows = [value["record"] for value in finished]
    seconds = math.fsum(value["seconds"] for value in finished)
    origin |= {"date": provenance.now(), "unit_seconds": seconds}
    kept = None if run.is_elsewhere else before
    written = previous_data.write(run.path, origin, rows, kept)
    text = "measured again" if before else "new"
    if before and run.experiment.repeats:
        text = before.compare(rows)
    return Outcome(0, text, seconds, written=written)


def _summary(run: Run, outcome: Outcome, computed: int, elapsed: float) -> str:
    took = f"{duration(elapsed)}, {duration(outcome.seconds)} of CPU time"
    end = f"written to {run.path}" if outcome.written else f"{run.path} is unchanged"
    return f"{run.stem}: {computed} units computed in {took}, {outcome.text}, {end}"


def copy_committed(
    run: Run, units: Sequence[Unit], journal: Journal, before: previous_data.Earlier
) -> None:
    """Keep the committed record of each unit that a reproduction does not compute.

    The source may have other arms by now, or the same ones in another order.
    """
    committed = {(row["arm"], row["seed"]): row for row in before.rows}
    copied = 0
    for unit in units:
        row = committed.get((unit.arm, unit.seed))
        chosen = run.experiment.is_recomputed(unit.arm, unit.seed, run.config.seeds)
        if row and not chosen and unit.key not in journal.done:
            journal.append(unit.key, {"seconds": 0.0, "record": row})
            copied += 1
    print(f"{run.stem}: {copied} of {len(units)} units copied from {run.reference}")


def perform(
    run: Run, missing: Sequence[Unit], journal: Journal, workers: pool.Workers
) -> None:
    """Run units; each is written to disk before the next result is read.

    Raises:
        UnitsFailedError: A unit failed; raised after all other units have run.
    """
    jobs = [
        pool.Job(run.stem, run.config, unit, run.options.device) for unit in missing
    ]
    kept = len(journal.done)
    progress = Units(run.stem, kept + len(jobs), kept)
    failed: list[str] = []
    for done in workers.run(jobs, run.options.processes):
        key = done.unit.key
        if isinstance(done, pool.Failed):
            failed.append(key)
            text = f"{run.stem}: {key} failed: {done.reason}\n{done.details}"
            print(text, file=sys.stderr)
            continue
        record = done.unit.named() | done.record
        journal.append(key, {"seconds": round(done.seconds, 3), "record": record})
        progress.finish()
    if failed:
        raise UnitsFailedError(
            f"{len(failed)} of {progress.total} units failed: {'; '.join(failed)}. The others are "
            f"kept in {journal.part}. Run the same command to retry the failed units; if memory "
            "was short, pass --jobs 1"
        )


def refuse(name: str, error: Exception) -> int:
    """Print an error, and return the exit status."""
    advice = ""
    if isinstance(error, OSError):
        advice = (
            "; check that the data and output paths can be read and written; finished units are "
            "kept; run the same command to continue"
        )
    print(f"{name}: error: {error}{advice}", file=sys.stderr)
    return 2 if isinstance(error, UsageError | BusyError) else 1
