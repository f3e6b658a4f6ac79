"""Entry point of `python -m experiments.engines [NAME ...]`."""

import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from ampsim.core.json_lines import Record
from ampsim.runs.record import data_file
from experiments.engines.checks import CHECKS, Check, Train
from experiments.engines.drivers import ENGINES
from experiments.engines.read import READ
from experiments.runner.device import describe

PATH = Path(__file__).parents[1] / "data" / "cpu" / "engines.jsonl"


def outcome(check: Check, train: Train) -> str:
    """Return passed, failed, or the error that the engine raised."""
    try:
        return "passed" if check(train) else "failed"
    except Exception as error:  # an engine may raise anything
        return f"error: {type(error).__name__}: {str(error).splitlines()[0][:120]}"


def row(name: str) -> Record:
    engine = ENGINES[name]
    return {
        "engine": name,
        "evidence": "run",
        "version": f"{engine.package} {version(engine.package)}",
        "torch": version("torch"),
        "date": datetime.now(UTC).date().isoformat(),
        "replaced": engine.replaced,
        "checks": {check.__name__: outcome(check, engine.train) for check in CHECKS},
    }


def main(names: list[str]) -> int:
    """Run the named engines, all by default, and replace their rows of the data file."""
    recorded = data_file.read(PATH)[1] if PATH.exists() else []
    rows = {record["engine"]: record for record in recorded}
    for name in names or ENGINES:
        rows[name] = row(name)
        print(name, rows[name]["checks"])
    for name, (source, note) in READ.items():
        rows[name] = {"engine": name, "evidence": "read", "version": source, "note": note}
    origin = {"script": "experiments/engines", "device": describe("cpu")}
    data_file.write(PATH, origin, rows.values())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
