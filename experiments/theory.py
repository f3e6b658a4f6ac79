"""Do theorems T1 to T10 of `ampsim.core.theory` hold on the machine?

Each arm is one case: what the closed form says and what the machine, `ampsim.core.machine.update`, or a batch of
it that has the same bits, does. Exact theorems are held to 1e-12; others to a tolerance that stands with the case.
No network is trained.

Takes about 15 s on one CPU core. Device: cpu.
"""

from collections.abc import Callable, Sequence

import numpy as np
from rich.table import Table

from ampsim.records import Record
from experiments import runner
from experiments.theorems import pathwise, stochastic
from experiments.theorems.case import Config as Config

DEVICES = ("cpu",)


SMOKE = Config(steps=60, runs=20, settling=1, histories=2000, elements=20_000)

CASES = {**pathwise.CASES, **stochastic.CASES}


def arms(config: Config) -> list[str]:
    """The names of the cases: the theorem, then its parameters."""
    return sorted(CASES, key=lambda name: int(name[1:3].rstrip(": ")))


def inputs() -> dict[str, str]:
    return {}


def run(config: Config, unit: runner.Unit, device: str, tick: Callable[[int], None]) -> Record:
    """One case; the columns are explained in `data/README.md`."""
    rng = np.random.default_rng([unit.seed, *unit.arm.encode()])
    rows = [{**held._asdict(), "error": held.error} for held in CASES[unit.arm](config, rng)]
    tick(config.steps)
    theorem, _, parameters = unit.arm.partition(": ")
    return {"theorem": theorem, "parameters": parameters, "held": rows}


def table(rows: Sequence[Record]) -> Table:
    """A line a number; what is beyond its tolerance is in red."""
    shown = Table("theorem", "case", "number", "predicted", "measured", "error", "tolerance", title="Theory")
    for row in rows:
        for held in row["held"]:
            numbers = [f"{held[name]:.6g}" for name in ("predicted", "measured")]
            error, tolerance = (f"{held[name]:.1e}" for name in ("error", "tolerance"))
            style = None if held["error"] <= held["tolerance"] else "red"
            shown.add_row(row["theorem"], row["parameters"], held["name"], *numbers, error, tolerance, style=style)
    return shown


if __name__ == "__main__":
    raise SystemExit(runner.main("theory"))
