"""From a `Config` to a data file: command line, units of work, journal, provenance.

An experiment is a module with a docstring (the question, then time and device), a frozen `Config`, a
`SMOKE` config that ends within 5 s, `arms(config)`, `inputs()` (name -> sha256 of what it reads) and
`run(config, unit, device, tick)`, which returns one record and calls `tick(steps done)` after each step. It
has one result a unit; a unit is one arm with one seed and depends on nothing but the config, so units run
in any order and in any process. If the module has `table(records)`, what it returns is printed at the end.
"""

import ast
import contextlib
import dataclasses
import importlib
import importlib.util
import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from ampsim import records
from experiments.runner import made_here, pool
from experiments.runner import provenance as _provenance
from experiments.runner.progress import Reporter

DATA = Path(__file__).parent.parent / "data"


class UnitsFailed(RuntimeError):  # noqa: N818 - says what happened
    """Some units raised, or their processes died; all others are kept."""


class Refused(ValueError):  # noqa: N818 - says what happened
    """Wrong use: the message gives value, expectation and cure."""


@dataclass(frozen=True)
class Config:
    """What every experiment has."""

    steps: int = 1000  # optimizer steps a unit
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)  # of weights and batches

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise Refused(f"steps={self.steps}: expected at least 1; pass --steps 1 for the shortest run")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise Refused(f"seeds={self.seeds}: expected one or more different seeds; pass for example --seeds 0 1")


@dataclass(frozen=True)
class Unit:
    """One arm with one seed."""

    arm: str
    seed: int
    settings: Any = None  # the arm itself, a frozen dataclass; None while `arms` gives names alone

    @property
    def key(self) -> str:
        return f"{self.arm}, seed {self.seed}"


@dataclass(frozen=True)
class Options:
    """How to run, which changes no result on one device."""

    device: Literal["cpu", "cuda"] = "cpu"  # where to compute
    smoke: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # a few steps, into a temporary folder
    jobs: int | None = None  # worker processes; default: up to 2 on cpu, 1 on cuda
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # run again although the data is up to date
    reproduce: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # reuse only data that was made in this folder
    out: Path | None = None  # data file; needed where the settings differ from the defaults

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise Refused(f"jobs={self.jobs}: expected at least 1; leave --jobs out for the default")

    @property
    def processes(self) -> int:
        """Worker processes: one step is one thread, so two fill the two cores of a small machine."""
        return self.jobs or (min(2, os.cpu_count() or 1) if self.device == "cpu" and not self.smoke else 1)


@dataclass(frozen=True)
class Run:
    """One experiment with one configuration, bound for one file."""

    stem: str
    config: Config
    options: Options
    path: Path
    argv: list[str] = field(default_factory=list)

    @property
    def module(self) -> Any:
        return importlib.import_module(f"experiments.{self.stem}")

    def units(self) -> list[Unit]:
        """In the order of the file."""
        arms = self.module.arms(self.config)
        return [
            Unit(name, seed, arms[name] if isinstance(arms, Mapping) else None)
            for name in arms
            for seed in self.config.seeds
        ]


def main(stem: str, argv: Sequence[str] | None = None, workers: pool.Workers | None = None) -> int:
    """Run one experiment from a command line, in workers that may be there already; returns the exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        if "--help" not in argv and "-h" not in argv:
            require_packages(stem)  # before they are imported
        run = parse(stem, argv)
        with contextlib.nullcontext(workers) if workers else pool.Workers() as workers:
            status = execute(run, workers)
        if status == 0 and not run.options.smoke:
            show(run)
        return status
    except Refused as error:
        print(f"{stem}: error: {error}", file=sys.stderr)
        return 2
    except (records.DamagedFileError, UnitsFailed) as error:
        print(f"{stem}: error: {error}", file=sys.stderr)
        return 1


def parse(stem: str, argv: Sequence[str]) -> Run:
    """The command line is `Options` and the experiment's `Config`, field by field."""
    try:
        module = importlib.import_module(f"experiments.{stem}")
    except ModuleNotFoundError:
        require_packages(stem)  # says which, and the cure
        raise
    default = module.SMOKE if "--smoke" in argv else module.Config()
    command: Any = dataclasses.make_dataclass(
        "Command", [("options", Options, Options()), ("config", module.Config, default)], frozen=True
    )
    parsed = tyro.cli(
        command,
        args=list(argv),
        prog=f"python -m experiments.{stem}",
        description=module.__doc__,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    options, config = parsed.options, parsed.config
    allowed = sorted({"cpu", *devices(stem)}) if options.smoke else devices(stem)  # a smoke run tries the code
    require_device(options.device, allowed)
    return Run(stem, config, options, options.out or default_path(stem, config, options, module.Config()), list(argv))


def default_path(stem: str, config: Config, options: Options, default: Config) -> Path:
    """The committed file for the default settings, a new temporary one for a smoke run, else a refusal."""
    if options.smoke:
        return Path(tempfile.mkdtemp(prefix="ampsim-smoke-")) / f"{stem}.jsonl"
    path = DATA / device_slug(options.device) / f"{stem}.jsonl"
    for name, wanted in dataclasses.asdict(default).items():
        if (value := getattr(config, name)) != wanted:
            raise Refused(
                f"{name}={value}: expected the default {wanted} for {path}; "
                "to keep the result of other settings pass --out FILE"
            )
    return path


def measures_time(stem: str) -> bool:
    """Whether an experiment says that its records do not repeat."""
    return _constant(stem, "REPEATS") is False


def missing_packages(stem: str) -> list[str]:
    """What an experiment names in ``REQUIRES``, beside torch and the like, and is not installed."""
    return [name for name in _constant(stem, "REQUIRES") or () if importlib.util.find_spec(name) is None]


def _constant(stem: str, name: str) -> Any:
    """What an experiment's source says a constant is, or None; importing it would take seconds."""
    tree = ast.parse((Path(__file__).parent.parent / f"{stem}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == name for target in node.targets):
            return ast.literal_eval(node.value)
    return None


def require_packages(stem: str) -> None:
    """Refuse an experiment whose packages are not installed."""
    if missing := missing_packages(stem):
        raise Refused(
            f"{stem} needs {' and '.join(missing)}: expected it to be installed; "
            "pip install -c constraints.txt 'ampsim[experiments,peers,trackers]'"
        )


def devices(stem: str) -> tuple[str, ...]:
    """Where an experiment can run: both, unless it names ``DEVICES``; read without importing it."""
    return _constant(stem, "DEVICES") or ("cpu", "cuda")


def require_device(device: str, allowed: Sequence[str] = ("cpu", "cuda")) -> None:
    """Refuse a device that the experiment does not take, and `cuda` where there is none, before anything is written."""
    if device not in allowed:
        raise Refused(
            f"device={device}: expected {' or '.join(allowed)} for this experiment; pass --device {allowed[0]}"
        )
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise Refused(
            f"device=cuda: expected a CUDA device, torch {torch.__version__} sees none; "
            "pass --device cpu, or install a CUDA build of torch"
        )


def device_slug(device: str) -> str:
    """`cpu`, or the card's name in small letters: NVIDIA H200 is nvidia-h200."""
    if device == "cpu":
        return "cpu"
    require_device(device)
    import torch

    words = "".join(c if c.isalnum() else " " for c in torch.cuda.get_device_name().lower())
    return "-".join(words.split())


def execute(run: Run, workers: pool.Workers) -> int:
    """Reuse the data if it is up to date; else run what the journal does not hold, and write the file."""
    units, config = run.units(), plain_config(run.config)
    inputs = run.module.inputs()
    wanted = run.options.force or (run.options.reproduce and not made_here.is_marked(run.path))
    if not wanted and reuse(run, config, inputs):
        return 0
    before = made_here.earlier(run.path, config, inputs)
    provenance = _provenance.collect(run.stem, run.argv, config, inputs, run.options.device)
    part = records.Journal(run.path, identity(provenance))
    if part.discarded:
        print(f"{run.stem}: unfinished run of other settings discarded: {part.discarded}")
    elif part.done:
        print(f"{run.stem}: resumed, {len(part.done)} of {len(units)} units are done")
    start = time.monotonic()
    try:
        perform(run, units, part, workers)
    except KeyboardInterrupt:
        print(f"\n{run.stem}: stopped; {len(part.done)} of {len(units)} units are kept in {part.part}")
        print(f"{run.stem}: the same command goes on from there")
        return 130
    done = [part.done[unit.key] for unit in units]
    provenance |= {"date": _provenance.now(), "unit_seconds": math.fsum(value["seconds"] for value in done)}
    part.finish(provenance, [value["record"] for value in done])
    print(f"{run.stem}: {len(units)} units in {time.monotonic() - start:.0f} s, written to {run.path}")
    if run.path.is_relative_to(DATA):
        made_here.mark(run.path)
    if before is not None and getattr(run.module, "REPEATS", True):
        print(f"{run.stem}: {made_here.compare(before, run.path)}")
    return 0


def perform(run: Run, units: Sequence[Unit], part: records.Journal, workers: pool.Workers) -> None:
    """Run the missing units; each is on the disk before the next result is looked at.

    Raises:
        UnitsFailed: after all others were run.
    """
    missing = [unit for unit in units if unit.key not in part.done]
    jobs = [pool.Job(run.stem, run.config, unit, run.options.device) for unit in missing]
    failed: list[pool.Failed] = []
    with Reporter(run.stem, len(units), run.config.steps, len(part.done)) as progress:
        for done in workers.run(jobs, run.options.processes, progress.step):
            if isinstance(done, pool.Failed):
                failed.append(done)
                print(f"{run.stem}: {done.unit.key} failed, the others go on: {done.reason}\n{done.details}",
                      file=sys.stderr)  # fmt: skip
                continue
            settings = dataclasses.asdict(done.unit.settings) if done.unit.settings is not None else None
            record = {"arm": done.unit.arm, "seed": done.unit.seed}
            record |= ({"settings": settings} if settings is not None else {}) | done.record
            part.append(done.unit.key, {"seconds": round(done.seconds, 3), "record": record})
            progress.finish(done.unit.key, done.seconds)
    if failed:
        raise UnitsFailed(
            f"{len(failed)} of {len(units)} units failed: {'; '.join(f.unit.key for f in failed)}. The others are kept "
            f"in {part.part}; the same command runs those that are missing"
        )


def show(run: Run) -> None:
    """Print the table of an experiment that has one."""
    if hasattr(run.module, "table"):
        provenance, rows = records.read(run.path)
        shown = run.module.table(rows)
        if isinstance(shown, str):
            print(shown)
        else:
            Console(width=max(120, Console().width), highlight=False).print(shown, markup=False)
        print(f"{run.stem}: measured on {provenance['device']['name']}")


def reuse(run: Run, config: dict[str, Any], inputs: dict[str, str]) -> bool:
    """True, and said so, when the file holds this config, these seeds and these inputs."""
    if not run.path.exists():
        return False
    provenance, rows = records.read(run.path)
    if provenance.get("config") != config or provenance.get("inputs_sha256") != inputs:
        return False
    commit = (provenance.get("commit") or "before the first commit")[:12]
    print(f"{run.stem}: reused, {len(rows)} units, from {commit}{' + changes' * bool(provenance.get('dirty'))}")
    if provenance.get("source_sha256") != _provenance.source_sha256(run.stem):
        print(f"{run.stem}: its source has changed since; --force runs it again")
    return True


def plain_config(config: Config) -> dict[str, Any]:
    """As it stands in a file: tuples are lists there."""
    plain: dict[str, Any] = records.decode(records.encode(dataclasses.asdict(config)))
    return plain


def identity(provenance: dict[str, Any]) -> dict[str, Any]:
    """What two runs must share for their units to stand in one file."""
    keys = ("config", "inputs_sha256", "source_sha256", "versions", "device", "threads")
    return {key: provenance[key] for key in keys}
