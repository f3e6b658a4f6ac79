"""A run of today's code, and what every run with a loss scale is held against: the reference
machine.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from ampsim import Rule, replay


def fresh(
    module: Any, arm: Any, seed: int = 0, config: Any = None, **changes: Any
) -> dict[str, Any]:
    """Return the record of one short run: the committed rows only say what the code once did.

    Args:
        module: the experiment.
        arm: a name among the experiment's own arms, or an arm.
        seed: of weights and batches.
        config: to change; the experiment's `SMOKE` if not given.
        changes: fields of the config.
    """
    config = replace(config or module.SMOKE, **changes)
    chosen = (
        (module.arms(config) | module.arms(module.Config()))[arm]
        if isinstance(arm, str)
        else arm
    )
    return {
        "arm": arm,
        "seed": seed,
        **module.run(config, chosen, seed, "cpu", lambda step: None),
    }


def scales(row: dict[str, Any], steps: int | None = None) -> list[float]:
    """Return the loss scale in force at each step."""
    starts, values = zip(*row["scale_changes"], strict=True)
    places = (
        np.searchsorted(
            starts, range(len(row["loss"]) if steps is None else steps), side="right"
        )
        - 1
    )
    return [float(values[place]) for place in places]


def assert_replayed(row: dict[str, Any], rule: Rule, steps: int | None = None) -> None:
    """Assert that the reference machine, given the overflows that were seen, gives the scales that
    the run had.
    """
    steps = len(row["loss"]) if steps is None else steps
    found_inf = np.isin(np.arange(steps), row["found_inf"])
    assert scales(row, steps) == [
        rule.init_scale,
        *replay(rule, found_inf.tolist()).tolist()[:-1],
    ]
