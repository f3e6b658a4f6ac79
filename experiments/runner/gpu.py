"""Run what an accelerator can show, by value: `python -m experiments gpu --minutes N`.

A part is the set of tests that need a device, or one experiment. A part runs only if its expected time
fits in the remaining time. A part that takes much longer is stopped, keeps its finished units, and
continues after the others. To continue later, run the same command. All results are packed after each
part. A part is skipped if a package that it requires is missing.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ampsim.core.files import BusyError, DamagedFileError
from ampsim.runs.record import data_file
from experiments.runner import archives, device, device_tests, experiment, journal, pool, provenance
from experiments.runner.execute import Options, Run, UnitsFailedError, execute
from experiments.runner.experiment import Experiment, UsageError, stems
from experiments.runner.slot import Lines, Part, Slot

# In this order; all others follow.
FIRST = ("gpt_fp16", "resnet_fp16", "device_claims", "overhead", "scale_crash")
UNKNOWN = 60.0  # s that an experiment without earlier data is expected to take
DRY = 5.0  # s that an experiment is expected to take in a dry run
PATIENCE = 3.0  # a part stops after so many times its expected time
LEAST = 60.0  # s that a part may take at least
FAILURES = (UsageError, UnitsFailedError, BusyError, DamagedFileError, OSError, RuntimeError)


def main(argv: Sequence[str]) -> int:
    """Run what fits in the time.

    Args:
        argv: Options of the command line.

    Returns:
        The exit status: 0 success, 1 a part failed, 2 no accelerator, 130 interrupted by the user.
    """
    told = parsed(argv)
    name = "cpu" if told.dry else device.accelerator()
    if name is None:
        message = "torch finds no accelerator; to try the command on the CPU, pass --dry"
        print(f"experiments gpu: error: {message}", file=sys.stderr)
        return 2
    slug = device.slug(name)
    logs = provenance.ROOT / "build" / "gpu" / slug
    data = logs if told.dry else experiment.FOLDER / "data" / slug
    end = time.monotonic() + 60 * told.minutes
    slot = Slot(name, data, logs, end, max(2, told.jobs), told.dry)
    slot.say(f"{device.describe(name)['name']}: data is written to {data}")
    return report(slot, told.out)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser("python -m experiments gpu", description=__doc__)
    add = parser.add_argument
    jobs = min(4, os.cpu_count() or 1)
    out = Path(os.environ.get("OUT") or "build/gpu")
    add(
        "--minutes",
        type=float,
        default=9.0,
        help="time limit for all parts, in minutes; default: 9",
    )
    add("--dry", action="store_true", help="run a few steps of each part on the CPU")
    add("--jobs", type=int, default=jobs, help="number of worker processes; at least 2")
    add("--out", type=Path, default=out, help="folder for the archives; default: $OUT or build/gpu")
    return parser.parse_args(argv)


def report(slot: Slot, out: Path) -> int:
    """Run the parts, pack the results after each, and print the outcomes.

    Args:
        slot: The device and its time.
        out: Folder for the archives.

    Returns:
        The exit status.
    """
    rows = []
    outcomes = []
    begun = time.monotonic()
    for name, outcome, note in perform(slot):
        seconds = time.monotonic() - begun
        slot.say(f"{name}: {outcome} {note}")
        rows.append(f"{name:20} {outcome:12} {seconds:7.0f}  {note}")
        outcomes.append(outcome)
        no_room = archives.pack(slot.files(), provenance.ROOT, out)
        begun = time.monotonic()
    on_cpu = [stem for stem in stems() if not accepts(stem)]
    damaged = list(problems(slot))
    print(f"\n{'part':20} {'outcome':12} seconds  note")
    print("\n".join(rows))
    print(f"skipped, because they run only on a CPU: {', '.join(on_cpu)}")
    for text in damaged:
        print(text)
    for path in no_room:
        print(f"{path}: does not fit in {archives.COUNT} archives; copy this file yourself")
    print(f"{len(list(out.glob('gpu-*.tgz')))} archives in {out}")
    if outcome == "interrupted":
        return 130
    return 1 if damaged or "failed" in outcomes else 0


def perform(slot: Slot) -> Iterator[Part]:
    """Run each part that fits, and yield its outcome; Ctrl-C ends all."""
    yield device_tests.run(slot)
    waiting = list(FIRST)
    waiting += [stem for stem in stems() if accepts(stem) and stem not in FIRST]
    patience = PATIENCE
    with pool.Workers() as workers:
        while waiting:
            stopped = []
            for stem in waiting:
                part = run_experiment(stem, slot, workers, patience)
                yield part
                if part.outcome == "interrupted":
                    return
                if part.outcome == "stopped" and slot.left > 0:
                    stopped.append(stem)
            waiting = stopped
            patience = 1e9  # nothing else waits


def accepts(stem: str) -> bool:
    """Return whether an experiment runs on an accelerator."""
    return "cuda" in Experiment(stem).devices


def run_experiment(stem: str, slot: Slot, workers: pool.Workers, patience: float) -> Part:
    """Run an experiment that fits; one that measures time has its own workers."""
    chosen = Experiment(stem)
    lines = Lines(slot)
    rung: list[int] = []
    if missing := chosen.missing_packages:
        return Part(stem, "skipped", f"requires {' and '.join(missing)}")
    try:
        run = run_of(chosen, slot)
        if is_done(run):
            return Part(stem, "up to date")
        needed = expected(chosen, slot)
        if needed > slot.left:
            return Part(stem, "skipped", f"takes about {needed:.0f} s")
        limit = max(LEAST, patience * needed)
        with ExitStack() as held:
            held.enter_context(pool.kernels(own=not chosen.repeats))
            held.enter_context(alarm(min(limit, slot.left), rung))
            if not chosen.repeats:
                workers = held.enter_context(pool.Workers(workers.answers))
            status = execute(run, workers, lines).status
    except ModuleNotFoundError as error:
        return Part(stem, "skipped", f"requires {error.name}")
    except FAILURES as error:
        return Part(stem, "failed", str(error))
    except KeyboardInterrupt:
        status = 130
    if status:
        return Part(stem, "stopped" if rung else "interrupted")
    return Part(stem, "resumed" if lines.resumed else "ran", verdict(chosen, run.path))


def verdict(chosen: Experiment, path: Path) -> str:
    """Return what the experiment's module says about a data file in one line; empty: nothing."""
    if not hasattr(chosen.module, "verdict"):
        return ""
    return str(chosen.module.verdict(data_file.read(path)[1]))


def run_of(chosen: Experiment, slot: Slot) -> Run:
    """Return the run of an experiment, with the default settings or a few steps."""
    module = chosen.module
    config = module.SMOKE if slot.dry else module.Config()
    name: Any = slot.device
    options = Options(device=name, jobs=slot.jobs, force=True)
    path = slot.data / f"{chosen.stem}.jsonl"
    return Run(chosen, config, options, path, ["--device", name], path)


def is_done(run: Run) -> bool:
    """Return whether the data exists for the current source, settings, and inputs."""
    if not run.path.exists():
        return False
    origin = data_file.read_provenance(run.path)
    wanted = {
        "source_sha256": provenance.source_sha256(run.stem),
        "config": run.config.plain(),
        "inputs_sha256": run.experiment.inputs(),
    }
    return all(origin[name] == value for name, value in wanted.items())


def expected(chosen: Experiment, slot: Slot) -> float:
    """Return the expected seconds, from earlier data of this device or of a CPU."""
    if slot.dry:
        return DRY
    seconds = UNKNOWN
    for path in (chosen.data("cpu"), slot.data / f"{chosen.stem}.jsonl"):
        if path.exists():
            seconds = float(data_file.read_provenance(path)["unit_seconds"])
    return seconds / slot.jobs if chosen.repeats else seconds


@contextmanager
def alarm(seconds: float, rung: list[int]) -> Iterator[None]:
    """Raise KeyboardInterrupt after so many seconds, and add to `rung`."""

    def ring(number: int, frame: object) -> None:
        rung.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def problems(slot: Slot) -> Iterator[str]:
    """Yield why a data file cannot be used: it cannot be read, or is from another device."""
    here = device.describe(slot.device)
    for path in sorted(slot.data.glob("*.jsonl")):
        try:
            there = data_file.read(path)[0]["device"]
        except DamagedFileError as error:
            yield str(error)
            continue
        if there != here:
            what = journal.difference(there, here)
            yield f"{path}: {what}; expected data from this device; move the file to another folder"
