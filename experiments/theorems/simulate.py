"""The machine under thresholds: one run with `update` itself, or a batch of runs, one numpy step for all of them.

The batch does the same operations on the same numbers, so it has the same bits; `tests/experiments/test_theory.py`
holds it against `update`.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ampsim.core.machine import Arithmetic, Rule, init, update

Array = NDArray[np.float64]


def follow(rule: Rule, thresholds: Iterable[float]) -> tuple[NDArray[np.bool_], Array]:
    """Run the machine where step t overflows if its scale is above ``thresholds[t]``.

    Returns:
        Which steps overflowed, and log2 of the scale in force at each; (steps,) both.
    """
    state, found, scales = init(rule), [], []
    for threshold in thresholds:
        found.append(state.scale > threshold)
        scales.append(state.scale)
        state = update(rule, state, found[-1])
    return np.array(found), np.log2(scales)


class Batch:
    """`size` scalers that follow one rule, each with its own history: no hysteresis, no delay, no quirks.

    `scale` (size,) is in the dtype of the rule's arithmetic, `tracker` (size,) int64.
    """

    def __init__(self, rule: Rule, size: int) -> None:
        plain = Rule(
            rule.init_scale, rule.growth_factor, rule.backoff_factor, rule.growth_interval,
            min_scale=rule.min_scale, max_scale=rule.max_scale, arithmetic=Arithmetic(dtype=rule.arithmetic.dtype),
        )  # fmt: skip
        if rule != plain:
            raise ValueError(
                f"{rule}: expected torch's arithmetic, no hysteresis, no delay, no quirks; use update"
            )
        self.rule = rule
        self.dtype = np.dtype(rule.arithmetic.dtype)
        self.low = 0.0 if rule.min_scale is None else rule.arithmetic.round(rule.min_scale)
        self.high = np.inf if rule.max_scale is None else rule.arithmetic.round(rule.max_scale)
        self.scale: NDArray[Any] = np.full(size, rule.init_scale, self.dtype)
        self.tracker = np.zeros(size, np.int64)

    def update(self, found_inf: NDArray[np.bool_]) -> None:
        """Update every scaler by its own flag, (size,)."""
        self.tracker += 1
        self.tracker[found_inf] = 0
        due = self.tracker == self.rule.growth_interval
        self.tracker[due] = 0
        factor = np.where(
            found_inf, self.rule.backoff_factor, np.where(due, self.rule.growth_factor, 1.0)
        )
        with np.errstate(over="ignore", under="ignore"):
            moved = (self.scale.astype(np.float64) * factor).astype(self.dtype)
        # A bound acts on the move towards it only.
        moved = np.where(
            due,
            np.minimum(moved, self.high),
            np.where(found_inf, np.maximum(moved, self.low), moved),
        )
        self.scale = np.where(np.isfinite(moved), moved, self.scale).astype(self.dtype, copy=False)
