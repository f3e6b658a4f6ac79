"""Which checks does each framework's own scaler pass, and does it still match its dialect?

Each adapter of `ampsim.frameworks` runs the checks of the conformance suite on the installed
scaler. Hypothesis generates the overflow sequences deterministically and shrinks them. Each adapter
is also compared with its dialect on random overflow sequences. If the package of an adapter is not
installed, the committed record stays. Scalers without an adapter here were run once; their records
have the version, date, and commit of that run. Device: cpu.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated

from ampsim import frameworks
from ampsim.core import json_lines
from ampsim.core.json_lines import Record
from ampsim.frameworks.adapter import Adapter, is_pinned
from ampsim.frameworks.checks import CHECKS, Verdict
from ampsim.frameworks.checks.drift import HISTORIES, drift
from ampsim.frameworks.checks.judging import ENDS, EXAMPLES, judge_all, promise
from ampsim.frameworks.checks.reports import reported
from ampsim.runs.record import data_file
from experiments import runner

REQUIRES = ("hypothesis",)
DEVICES = ("cpu",)
RECOMPUTED = ("checks", "torch", "torch-sharded", "ampsim-torch")
ABOUT = ("requirement", "target", "source", "dialect", "patched")
ADDED = ("arm", "seed", "settings")  # to a record, by the runner


def committed() -> dict[str, Record]:
    """Return the committed record of each scaler, live or not, without what the runner adds and
    without checks that are gone.
    """
    path = runner.DATA / "cpu" / "conformance.jsonl"
    records = dict[str, Record]()
    for row in data_file.read(path)[1] if path.exists() else ():
        if row["arm"] != "checks":
            record = {key: value for key, value in row.items() if key not in ADDED}
            found = {
                name: each for name, each in row["checks"].items() if name in CHECKS
            }
            records[row["arm"]] = {**record, "checks": found}
    return records


NAMES = (
    *frameworks.REGISTRY,
    *(name for name in committed() if name not in frameworks.REGISTRY),
)


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = EXAMPLES  # examples per check
    seeds: tuple[int, ...] = (0,)  # the examples do not depend on it
    histories: int = HISTORIES  # per comparison with a dialect
    adapters: Annotated[tuple[str, ...], runner.one_of(("all", *NAMES))] = ("all",)


@dataclass(frozen=True)
class Arm:
    """A scaler by its name; None is the list of checks."""

    adapter: str | None


SMOKE = Config(steps=2, histories=10, adapters=("torch",))


def arms(config: Config) -> Mapping[str, Arm]:
    return {
        "checks": Arm(None),
        **{
            name: Arm(name)
            for name in (NAMES if config.adapters == ("all",) else config.adapters)
        },
    }


def run(
    config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Judge one adapter, or return what was recorded; the columns are explained in
    `data/README.md`.
    """
    if arm.adapter is None:
        promises = {name: promise(name) for name in CHECKS}
        return {
            "sentences": {name: check.statement for name, check in CHECKS.items()},
            "promises": promises,
            "ends": sorted(ENDS),
        }
    before = committed().get(arm.adapter)
    if before and arm.adapter not in frameworks.REGISTRY:
        return before
    adapter = frameworks.load(arm.adapter)()
    try:
        found = judged(adapter, config, tick)
    except ModuleNotFoundError:
        if before is None:
            raise
        return before
    found["date"] = before and before["date"]
    if before != json_lines.decode(json_lines.encode(found)):
        found["date"] = str(datetime.now(UTC).date())
    return found


def judged(adapter: Adapter, config: Config, tick: Callable[[int], None]) -> Record:
    """Return what each check and the dialect say of an adapter; raise ModuleNotFoundError where its
    package is missing.
    """
    version = adapter.version()
    adapter.start()
    checks = {}
    for number, verdict in enumerate(
        judge_all(adapter, CHECKS.values(), examples=config.steps), 1
    ):
        checks[verdict.result.check.name] = cell(adapter, verdict)
        tick(number * config.steps // len(CHECKS))
    about = {
        "class": adapter.same_class or adapter.name,
        **{name: getattr(adapter, name) for name in ABOUT},
        "live": True,
    }
    compared = (
        asdict(drift(adapter, histories=config.histories)) if adapter.dialect else None
    )
    return {
        **about,
        "version": version,
        "pinned": is_pinned(adapter, version),
        "checks": checks,
        "drift": compared,
    }


def cell(adapter: Adapter, verdict: Verdict) -> Record:
    """Return what one check says of an adapter, with the shortest history that breaks it."""
    result = verdict.result
    declared = result.text if result.outcome == "xfailed" else ""
    found: Record = {
        "outcome": result.outcome,
        "seen": verdict.seen,
        "reason": declared,
    }
    if verdict.example is not None:
        found["did"] = [
            f"{label}: {text}" for label, text in verdict.example.story() if text
        ]
    if result.outcome == "failed":
        found["reports"] = reported(adapter, result.check.name)
    return found


if __name__ == "__main__":
    raise SystemExit(runner.main("conformance"))
