"""Do theorems T1 to T10 of `ampsim.core.theory` hold on the reference state machine?

Each arm is one case: the closed form, and the result of the state machine, `ampsim.core.machine.update`,
or of a batched version with the same bits. Exact theorems must hold to 1e-12; others to a tolerance given
with the case. No network is trained.

Device: cpu.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from rich.table import Table

from ampsim.core.json_lines import Record
from experiments import runner
from experiments.theorems import pathwise, stochastic
from experiments.theorems.case import Arm
from experiments.theorems.case import Config as Config

DEVICES = ("cpu",)


SMOKE = Config(steps=60, runs=20, settling=1, histories=2000, elements=20_000)

CASES = {**pathwise.CASES, **stochastic.CASES}


def arms(config: Config) -> Mapping[str, Arm]:
    """Return the cases in the order of the theorems."""
    return {arm.name: arm for arm in sorted(CASES, key=lambda arm: arm.number)}


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Hold one case; the columns are explained in `data/README.md`."""
    rng = np.random.default_rng([seed, *arm.name.encode()])
    rows = [{**held._asdict(), "error": held.error} for held in CASES[arm](config, rng)]
    tick(config.steps)
    return {"theorem": arm.theorem, "parameters": arm.parameters, "held": rows}


def table(rows: Sequence[Record]) -> Table:
    """Return one line per number; what is beyond its tolerance is in red."""
    shown = Table(
        "theorem", "case", "number", "predicted", "measured", "error", "tolerance", title="Theory"
    )
    for row in rows:
        for held in row["held"]:
            numbers = [f"{held[name]:.6g}" for name in ("predicted", "measured")]
            error, tolerance = (f"{held[name]:.1e}" for name in ("error", "tolerance"))
            style = None if held["error"] <= held["tolerance"] else "red"
            shown.add_row(
                row["theorem"],
                row["parameters"],
                held["name"],
                *numbers,
                error,
                tolerance,
                style=style,
            )
    return shown


if __name__ == "__main__":
    raise SystemExit(runner.main("theory"))
