"""`python -m experiments gpu --minutes N` runs what an accelerator can show, by value.

A part is the tests that need a device, or an experiment. A part runs only if its expected time
fits in the time that is left. A part that takes much longer stops, keeps its finished units, and
goes on after the others; the same command goes on from there. After each part, all results are
packed. A part that needs a package that is missing is left out.
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

from ampsim import records
from ampsim.core.files import BusyError, DamagedFileError
from experiments.runner import archives, device, device_tests, experiment, pool, provenance
from experiments.runner.execute import Options, Run, UnitsFailedError, execute
from experiments.runner.experiment import Experiment, UsageError, stems
from experiments.runner.slot import Lines, Part, Slot

# The most valuable first; all others follow.
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
        The exit status: 0 good, 1 a part failed, 2 no accelerator, 130 interrupted by the user.
    """
    told = parsed(argv)
    name = "cpu" if told.dry else device.accelerator()
    if name is None:
        message = "torch sees no accelerator; to try the command, pass --dry"
        print(f"experiments gpu: error: {message}", file=sys.stderr)
        return 2
    slug = device.slug(name)
    logs = provenance.ROOT / "build" / "gpu" / slug
    data = logs if told.dry else experiment.FOLDER / "data" / slug
    end = time.monotonic() + 60 * told.minutes
    slot = Slot(name, data, logs, end, max(2, told.jobs), told.dry)
    slot.say(f"{device.describe(name)['name']}: data go to {data}")
    return report(slot, told.out)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser("python -m experiments gpu", description=__doc__)
    add = parser.add_argument
    jobs = min(4, os.cpu_count() or 1)
    out = Path(os.environ.get("OUT") or "build/gpu")
    add("--minutes", type=float, default=9.0, help="time for all parts; default: 9")
    add("--dry", action="store_true", help="a few steps of each part, on the CPU")
    add("--jobs", type=int, default=jobs, help="worker processes, at least 2")
    add("--out", type=Path, default=out, help="for the archives; default: $OUT or build/gpu")
    return parser.parse_args(argv)


def report(slot: Slot, out: Path) -> int:
    """Run the parts, pack after each, and print what became of them.

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
    print(f"left out, as they run on a CPU only: {', '.join(on_cpu)}")
    for text in damaged:
        print(text)
    for path in no_room:
        print(f"{path}: no room in {archives.COUNT} archives; copy the file")
    print(f"{len(list(out.glob('gpu-*.tgz')))} archives in {out}")
    if outcome == "interrupted":
        return 130
    return 1 if damaged or "failed" in outcomes else 0


def perform(slot: Slot) -> Iterator[Part]:
    """Run each part that fits, and yield what became of it; Ctrl-C ends all."""
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
    """Run an experiment that fits; one that measures time has workers of its own."""
    chosen = Experiment(stem)
    lines = Lines(slot)
    rung: list[int] = []
    if missing := chosen.missing_packages:
        return Part(stem, "left out", f"needs {' and '.join(missing)}")
    try:
        run = run_of(chosen, slot)
        if is_done(run):
            return Part(stem, "done before")
        needed = expected(chosen, slot)
        if needed > slot.left:
            return Part(stem, "left out", f"takes about {needed:.0f} s")
        limit = max(LEAST, patience * needed)
        with ExitStack() as held:
            held.enter_context(pool.kernels(own=not chosen.repeats))
            held.enter_context(alarm(min(limit, slot.left), rung))
            if not chosen.repeats:
                workers = held.enter_context(pool.Workers(workers.answers))
            status = execute(run, workers, lines).status
    except ModuleNotFoundError as error:
        return Part(stem, "left out", f"needs {error.name}")
    except FAILURES as error:
        return Part(stem, "failed", str(error))
    except KeyboardInterrupt:
        status = 130
    if status:
        return Part(stem, "stopped" if rung else "interrupted")
    return Part(stem, "resumed" if lines.resumed else "ran")


def run_of(chosen: Experiment, slot: Slot) -> Run:
    """Return the run of an experiment, with the default settings or a few steps."""
    module = chosen.module
    config = module.SMOKE if slot.dry else module.Config()
    name: Any = slot.device
    options = Options(device=name, jobs=slot.jobs, force=True)
    path = slot.data / f"{chosen.stem}.jsonl"
    return Run(chosen, config, options, path, ["--device", name], path)


def is_done(run: Run) -> bool:
    """Return whether the data are there, of today's source, settings and inputs."""
    if not run.path.exists():
        return False
    origin = records.read_provenance(run.path)
    wanted = {
        "source_sha256": provenance.source_sha256(run.stem),
        "config": run.config.plain(),
        "inputs_sha256": run.experiment.inputs(),
    }
    return all(origin[name] == value for name, value in wanted.items())


def expected(chosen: Experiment, slot: Slot) -> float:
    """Return the seconds that earlier data took, of this device or of a CPU."""
    if slot.dry:
        return DRY
    seconds = UNKNOWN
    for path in (chosen.data("cpu"), slot.data / f"{chosen.stem}.jsonl"):
        if path.exists():
            seconds = float(records.read_provenance(path)["unit_seconds"])
    return seconds / slot.jobs if chosen.repeats else seconds


@contextmanager
def alarm(seconds: float, rung: list[int]) -> Iterator[None]:
    """Interrupt what runs after so many seconds, as Ctrl-C does, and add to `rung`."""

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
    """Yield why a data file is of no use: it cannot be read, or it is of another device."""
    here = device.describe(slot.device)
    for path in sorted(slot.data.glob("*.jsonl")):
        try:
            there = records.read(path)[0]["device"]
        except DamagedFileError as error:
            yield str(error)
            continue
        if there != here:
            what = records.difference(there, here)
            yield f"{path}: {what}; expected this device; move the file away"
