"""The rounding error of a loop, measured on the same batches with their rows in another order."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ampsim.testing.loop.rows import larger, permuted
from ampsim.testing.loop.runs import Batch, Make, advance, begin
from ampsim.testing.loop.state import LOGGED, Array, Difference, State

TIMES = 16.0  # what the order of rows makes of a change, and less, is rounding
ULPS = 8 * 2.0**-23  # of an array's largest element, and of its change: what one sum more may make
MOST = (
    2.0**-7
)  # of a change: more is not made by rounding, unless the array is nothing but rounding
FEW = 1 / 4  # of the arrays that move: of more, the order of the rows means something


class Rounding:
    """The tolerance of a loop: the changes that a permutation of the batch rows causes."""

    def __init__(self, make: Make, batches: Sequence[Batch], scale: float) -> None:
        self._make, self._batches, self._scale = make, batches, scale
        self._runs: dict[
            Callable[[Any], Any], Any
        ] = {}  # runs, by the way in which their batches differ

    def _others(self, step: int, before: State, left: State) -> State | None:
        """Return what other batches leave after a step that differ from these by rounding alone; None for none.

        Their rows are in another order; where that means something, or there are none, their numbers are larger by a
        last bit.
        """
        for way in (permuted, larger):
            others = [replace(each, data=way(each.data)) for each in self._batches[: step + 1]]
            if any(each.data is None for each in others):
                continue
            if way not in self._runs:
                self._runs[way] = begin(self._make, self._scale)
            states = advance(self._runs[way], others[len(self._runs[way].states) - 1 :]).states
            moving = [
                kind for kind in kinds(before, left, states[step + 1], apart=True) if _change(kind)
            ]
            if sum(distance(kind) > MOST for kind in moving) <= FEW * len(moving):
                return states[step + 1]
        return None

    def beyond(self, before: State, left: State, right: State, step: int) -> list[Difference]:
        """Return the differences of two states after a step, of kinds that are together too large for rounding.

        A kind is all of one owner and one type, and in the state of an optimizer of one name, as ``exp_avg``, without
        those that are nothing but rounding, as the bias of the keys of an attention.
        """
        if all(distance(kind) <= ULPS for kind in kinds(before, left, right)):
            return []
        other = self._others(step, before, left)
        shaken = kinds(before, left, other or left, apart=True)
        noisy = {kind[0].name for kind in shaken if distance(kind) > MOST}
        allowed = {
            _key(kind[0]): distance(kind) for kind in kinds(before, left, other or left, noisy)
        }
        found: list[Difference] = []
        for kind in kinds(before, left, right, noisy):
            if distance(kind) > TIMES * allowed.get(_key(kind[0]), 0.0) + ulps(kind):
                found += [
                    each
                    for each in kind
                    if each.left is None or each.right is None or each.size() > 0
                ]
        return found


def kinds(
    before: State,
    left: State,
    right: State,
    unsupported: Collection[str] = (),
    *,
    apart: bool = False,
) -> list[list[Difference]]:
    """Return all arrays of two states by their kinds, or each `apart`, but for the data and what is logged."""
    found: dict[object, list[Difference]] = {}
    for name in dict.fromkeys([*left, *right]):
        each = Difference(name, left.get(name), right.get(name), before.get(name))
        if name.partition(".")[0] not in (LOGGED, "data") and name not in unsupported:
            found.setdefault(name if apart else _key(each), []).append(each)
    return [*found.values()]


def _key(each: Difference) -> tuple[str, ...]:
    owner, _, rest = each.name.partition(".")
    last = rest.rpartition(".")[2] if rest.startswith(("state.", "param_groups.")) else ""
    return owner, last, each.left.dtype.kind if each.left is not None else ""


def ulps(kind: Sequence[Difference]) -> float:
    """Return what rounding makes of the last addition to each array, relative to the change."""
    last = sum(
        each.left.size * (ULPS * float(np.abs(each.left.astype(np.float64)).max())) ** 2
        for each in kind
        if each.left is not None and each.left.dtype.kind == "f" and each.left.size
    )
    change = _change(kind)
    return ULPS + (math.sqrt(last) / change if change else 0.0)


def _change(kind: Sequence[Difference]) -> float:
    total = 0.0
    for each in kind:
        if each.left is not None and each.left.dtype.kind in "fiu":
            before = each.before if each.before is not None else np.zeros_like(each.left)
            total += _squares(
                each.left, before if before.shape == each.left.shape else np.zeros_like(each.left)
            )
    return math.sqrt(total)


def _squares(to: Array, of: Array) -> float:
    """Return the sum of squares of the differences of elements; an inf that stays one makes none."""
    to, of = to.astype(np.float64), of.astype(np.float64)
    moved = to != of
    return float(((to[moved] - of[moved]) ** 2).sum())


def distance(kind: Sequence[Difference]) -> float:
    """Return the distance of two changes, relative to the change."""
    apart = 0.0
    for each in kind:
        if each.left is None or each.right is None or each.left.shape != each.right.shape:
            return math.inf
        if each.left.dtype.kind in "fiu":
            apart += _squares(each.right, each.left)
    if apart == 0:
        return 0.0
    change = _change(kind)
    return math.sqrt(apart) / change if change > 0 and math.isfinite(apart) else math.inf
