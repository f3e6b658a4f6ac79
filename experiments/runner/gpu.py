"""`python -m experiments gpu --minutes N` runs what an accelerator can show, the most valuable part first.

A part is the tests that need a device, or an experiment. A part runs only if its expected time fits in the time that
is left. A part that takes much longer stops, keeps its finished units, and goes on after all others; the same command
goes on from there. After each part, all results are packed. A part that needs a package that is missing is left out.
"""

import argparse
import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ampsim import records
from ampsim.core.files import BusyError, DamagedFileError
from experiments.runner import archives, device, experiment, pool, provenance
from experiments.runner.execute import Options, Run, UnitsFailedError, execute
from experiments.runner.experiment import Experiment, UsageError, stems

FIRST = ("gpt_fp16", "resnet_fp16", "device_claims", "overhead", "scale_crash")  # all others follow
UNKNOWN = 60.0  # s that an experiment without data of a CPU is expected to take
TESTS = 60.0  # s that the tests are expected to take
PATIENCE, LEAST = 3.0, 60.0  # a part stops after so many times its expected time, but not before so many s
LONG = 1e9  # so many times, when no other part waits
DRY = 5.0  # s that a part of a dry run is expected to take
CLOSING = 5.0  # s kept for the last archives
QUIET = 10.0  # s between two lines of progress
FAILURES = (UsageError, UnitsFailedError, BusyError, DamagedFileError, OSError, RuntimeError)


class Part(NamedTuple):
    """What became of a part.

    It ran, was resumed, done before, left out, stopped as its time was over, interrupted by the user, or it failed.
    """

    name: str
    outcome: str
    note: str = ""


@dataclass(frozen=True)
class Session:
    """A device, and the time for which it is ours."""

    device: str  # its type
    data: Path  # folder of the data files
    logs: Path  # folder of the logs of tests
    end: float  # of `time.monotonic`
    jobs: int = 2  # worker processes
    dry: bool = False  # a few steps of each part

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.end - CLOSING - time.monotonic()

    def say(self, text: str) -> None:
        """Print a line, with the time that is left."""
        minutes, seconds = divmod(max(0, round(self.left)), 60)
        print(f"[{minutes}:{seconds:02} left] {text}", flush=True)


class Lines:
    """Prints how far an experiment is."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.last = time.monotonic()
        self.resumed = False

    def count(self, stem: str, units: int, steps: int, done: int) -> None:
        """Note the units of an experiment, and how many are done."""
        self.stem, self.units, self.done = stem, units, done
        self.resumed = done > 0

    def step(self, unit: str, steps: int) -> None:
        """Show after a while that the work goes on."""
        if time.monotonic() - self.last >= QUIET:
            self.last = time.monotonic()
            self.session.say(f"{self.stem}: {self.done} of {self.units} units")

    def finish(self, unit: str) -> None:
        """Note that a unit is done."""
        self.done += 1
        self.step(unit, 0)


def main(argv: Sequence[str]) -> int:
    """Run what fits; return the exit status: 0 good, 1 a part failed, 2 no accelerator, 130 stopped by the user."""
    told = parsed(argv)
    name = "cpu" if told.dry else device.accelerator()
    if name is None:
        print("experiments gpu: error: torch sees no accelerator; to try the command, pass --dry", file=sys.stderr)
        return 2
    slug = device.slug(name)
    logs = provenance.ROOT / "build" / "gpu" / slug
    data = logs if told.dry else experiment.FOLDER / "data" / slug
    end = time.monotonic() + 60 * told.minutes
    session = Session(name, data, logs, end, max(2, told.jobs), told.dry)
    session.say(f"{device.describe(name)['name']}: data go to {data}")
    return report(session, told.out)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=9.0, help="time for all parts together; default: 9")
    parser.add_argument("--dry", action="store_true", help="a few steps of each part, on the CPU")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="worker processes, at least 2")
    out = Path(os.environ.get("OUT") or "build/gpu")
    parser.add_argument("--out", type=Path, default=out, help="folder for the archives; default: $OUT or build/gpu")
    return parser.parse_args(argv)


def report(session: Session, out: Path) -> int:
    """Run the parts, pack after each, and print what became of them; return the exit status."""
    rows, failed, outcome = [], False, ""
    begun = time.monotonic()
    for name, outcome, note in perform(session):
        seconds = time.monotonic() - begun
        session.say(f"{name}: {outcome} {note}")
        rows.append(f"{name:20} {outcome:12} {seconds:7.0f}  {note}")
        failed |= outcome == "failed"
        left_out = archives.pack(files(session), provenance.ROOT, out)
        begun = time.monotonic()
    damaged = list(problems(session))
    print(f"\n{'part':20} {'outcome':12} seconds  note")
    print("\n".join([*rows, *damaged]))
    print(f"left out, as the experiment runs on a CPU only: {', '.join(stem for stem in stems() if not accepts(stem))}")
    print("".join(f"{path}: no room in {archives.COUNT} archives; copy the file\n" for path in left_out), end="")
    print(f"{len(list(out.glob('gpu-*.tgz')))} archives in {out}")
    if outcome == "interrupted":
        return 130
    return 1 if failed or damaged else 0


def perform(session: Session) -> Iterator[Part]:
    """Run each part that fits, and yield what became of it; Ctrl-C ends all."""
    yield run_tests(session)
    waiting = [*FIRST, *(stem for stem in stems() if stem not in FIRST and accepts(stem))]
    patience = PATIENCE
    with pool.Workers() as workers:
        while waiting:
            stopped = []
            for stem in waiting:
                part = run_experiment(Experiment(stem), session, workers, patience)
                yield part
                if part.outcome == "interrupted":
                    return
                if part.outcome == "stopped" and session.left > 0:
                    stopped.append(stem)
            waiting, patience = stopped, LONG


def accepts(stem: str) -> bool:
    """Return whether an experiment runs on an accelerator."""
    return "cuda" in Experiment(stem).devices


def run_experiment(chosen: Experiment, session: Session, workers: pool.Workers, patience: float) -> Part:
    """Run an experiment that fits; one that measures time has workers of its own."""
    stem, lines = chosen.stem, Lines(session)
    rung: list[int] = []
    if missing := chosen.missing_packages:
        return Part(stem, "left out", f"needs {' and '.join(missing)}")
    try:
        run = run_of(chosen, session)
        if is_done(run):
            return Part(stem, "done before")
        needed = DRY if session.dry else expected(chosen, session)
        if needed > session.left:
            return Part(stem, "left out", f"takes about {needed:.0f} s")
        with ExitStack() as held:
            held.enter_context(pool.kernels(own=not chosen.repeats))
            held.enter_context(alarm(min(session.left, max(LEAST, patience * needed)), rung))
            used = workers if chosen.repeats else held.enter_context(pool.Workers(workers.answers))
            status = execute(run, used, lines).status
    except ModuleNotFoundError as error:
        return Part(stem, "left out", f"needs {error.name}")
    except FAILURES as error:
        return Part(stem, "failed", str(error))
    except KeyboardInterrupt:
        status = 130
    if status:
        return Part(stem, "stopped" if rung else "interrupted")
    return Part(stem, "resumed" if lines.resumed else "ran")


def run_of(chosen: Experiment, session: Session) -> Run:
    """Return the run of an experiment: of the settings of its committed data, or a few steps."""
    config = chosen.module.SMOKE if session.dry else chosen.module.Config()
    kind: Any = session.device
    options = Options(device=kind, jobs=session.jobs, force=True)
    path = session.data / f"{chosen.stem}.jsonl"
    return Run(chosen, config, options, path, ["--device", session.device], path)


def expected(chosen: Experiment, session: Session) -> float:
    """Return the seconds that an experiment may take: what its earlier data took, of this device or of a CPU."""
    paths = (session.data / f"{chosen.stem}.jsonl", chosen.data("cpu"))
    known = [records.read_provenance(path)["unit_seconds"] for path in paths if path.exists()]
    taken = float(known[0]) if known else UNKNOWN
    return taken / session.jobs if chosen.repeats else taken


def is_done(run: Run) -> bool:
    """Return whether the data are there, of today's source, settings and inputs."""
    if not run.path.exists():
        return False
    origin = records.read_provenance(run.path)
    wanted = (provenance.source_sha256(run.stem), run.config.plain(), run.experiment.inputs())
    return (origin["source_sha256"], origin["config"], origin["inputs_sha256"]) == wanted


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


def run_tests(session: Session) -> Part:
    """Run the tests that need a device; if they passed with today's sources, they are done."""
    log = session.logs / f"tests.{digest()}.log"
    if log.exists():
        return Part("tests", "done before")
    if missing := [name for name in ("pytest", "hypothesis") if importlib.util.find_spec(name) is None]:
        return Part("tests", "left out", f"needs {' and '.join(missing)}")
    if session.left < (DRY if session.dry else TESTS):
        return Part("tests", "left out", f"takes about {TESTS:.0f} s")
    log.parent.mkdir(parents=True, exist_ok=True)
    part = log.with_suffix(".part")
    marks, platforms = ("not gpu", "cpu") if session.dry else ("gpu", "")  # JAX: whichever there is
    folders = ("torch", "probe", "jax") if importlib.util.find_spec("jax") else ("torch", "probe")
    tests = [f"tests/{folder}/test_gpu.py" for folder in folders]
    command = [sys.executable, "-m", "pytest", "-q", "-m", marks, *tests]
    environment = os.environ | {"JAX_PLATFORMS": platforms}
    try:
        with part.open("wb") as file:
            subprocess.run(  # noqa: S603 - our own
                command, cwd=provenance.ROOT, env=environment, stdout=file, timeout=session.left, check=True
            )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        outcome = "stopped" if isinstance(error, subprocess.TimeoutExpired) else "failed"
        return Part("tests", outcome, f"see {part}")
    part.rename(log)
    return Part("tests", "ran", log.read_text(encoding="utf-8").splitlines()[-1])


def digest() -> str:
    """Return twelve digits that tell today's sources from others."""
    paths = [path for name in ("ampsim", "tests") for path in (provenance.ROOT / name).rglob("*.py")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()[:12]


def files(session: Session) -> list[Path]:
    """Return what is to be packed: data, journals, and logs; the smallest first, so that most find room."""
    found = {path for folder in (session.data, session.logs) for path in folder.glob("*.*")}
    results = (path for path in found if path.suffix in (".jsonl", ".part", ".log"))
    return sorted(results, key=lambda path: path.stat().st_size)


def problems(session: Session) -> Iterator[str]:
    """Yield why a data file is of no use: it cannot be read, or it is of another device."""
    here = device.describe(session.device)
    for path in sorted(session.data.glob("*.jsonl")):
        try:
            there = records.read(path)[0]["device"]
        except DamagedFileError as error:
            yield str(error)
        else:
            if there != here:
                yield f"{path}: {records.difference(there, here)}; expected this device; move the file away"
