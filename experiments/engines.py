"""Do training engines follow the loss-scaling protocol in fp16, on one rank and on two?

`experiments.engine_drivers` runs each engine as it is, on the CPU, with gloo, launched by torchrun.
An engine that is not installed keeps its committed record, which has the version and date of its
run. Engines that were only read have a source and a note. Device: cpu. `make engines` installs the
packages and runs this.
"""

import ast
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from rich.table import Table

from ampsim.core.json_lines import Record
from ampsim.runs.record import data_file
from experiments import engine_drivers, runner
from experiments.engine_drivers import ENGINES, READ
from experiments.runner.provenance import essence

DEVICES = ("cpu",)
REPEATS = False  # its records depend on installed packages
ROOT = Path(__file__).parents[1]
LIMIT = 600  # seconds for the checks of one engine
NAMES = (*ENGINES, *READ)


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 1
    seeds: tuple[int, ...] = (0,)  # nothing is random
    engines: Annotated[tuple[str, ...], runner.one_of(NAMES)] = NAMES


@dataclass(frozen=True)
class Arm:
    """One of `ENGINES` or `READ`."""

    engine: str


SMOKE = Config(engines=tuple(READ))


def arms(config: Config) -> Mapping[str, Arm]:
    return {name: Arm(name) for name in config.engines}


def inputs() -> dict[str, str]:
    """Return the sha256 of each driver, which other processes import, without comments and layout."""
    paths = sorted(Path(engine_drivers.__path__[0]).glob("*.py"))
    texts = {path.name: essence(ast.parse(path.read_bytes())) for path in paths}
    return {
        name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()
    }


def run(
    config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Check one engine; the columns are explained in `data/README.md`."""
    if arm.engine in READ:
        source, note = READ[arm.engine]
        return {"version": source, "note": note}
    engine = ENGINES[arm.engine]
    if importlib.util.find_spec(engine.module) is None:
        return committed(arm.engine)
    one, two = (checked(arm.engine, ranks) for ranks in (1, 2))
    scales = [one.pop("settled_scale", None), two.pop("settled_scale", None)]
    return {
        "version": f"{engine.package} {version(engine.package)}",
        "torch": version("torch"),
        "date": datetime.now(UTC).date().isoformat(),
        "replaced": engine.replaced,
        "checks": one,
        "rank_checks": two,
        "settled_scales": scales,
    }


def committed(name: str) -> Record:
    """Return the committed record of an engine, without what the runner adds."""
    path = runner.DATA / "cpu" / "engines.jsonl"
    rows = data_file.read(path)[1] if path.exists() else ()
    kept = [row for row in rows if row["arm"] == name]
    if not kept:
        return {
            "version": None,
            "note": f"not run: pip install {ENGINES[name].package}",
        }
    return {
        key: value
        for key, value in kept[0].items()
        if key not in ("arm", "seed", "settings")
    }


def checked(name: str, ranks: int) -> Record:
    """Return the outcome of each check, by its name; of several ranks, the first that did not pass."""
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "outcomes")
        command = [
            sys.executable,
            "-m",
            *launcher,
            "-m",
            "experiments.engine_drivers",
            name,
        ]
        done = subprocess.run(  # noqa: S603
            [*command, str(path)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        outcomes: Record = {}
        for file in sorted(Path(folder).iterdir()):
            for check, outcome in map(json.loads, file.read_text().splitlines()):
                if outcomes.get(check, "passed") == "passed":
                    outcomes[check] = outcome
    if done.returncode:
        outcomes["processes"] = f"error: exit status {done.returncode}"
    return outcomes


def table(records: Sequence[Record]) -> Table:
    """Return the outcomes, one line per engine."""
    lines = Table("engine", "version", "one rank", "two ranks", "scale that settles")
    for record in records:
        name, source = record["arm"], str(record["version"])
        if "note" in record:
            lines.add_row(name, source, record["note"])
            continue
        groups = (record["checks"], record["rank_checks"])
        lines.add_row(
            name, source, *map(summary, groups), str(record["settled_scales"])
        )
    return lines


def summary(outcomes: Mapping[str, str]) -> str:
    problems = [
        f"{check} {text}" for check, text in outcomes.items() if text != "passed"
    ]
    return "; ".join(problems) or "passed"


if __name__ == "__main__":
    raise SystemExit(runner.main("engines"))
