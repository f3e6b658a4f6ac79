"""What rounding makes of a loop's numbers: the same batches with their rows in another order say it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ampsim.testing.loop.run import Run
from ampsim.testing.loop.runs import Batch, Make, advance, begin
from ampsim.testing.loop.state import LOGGED, Difference, State

TIMES = 16.0  # what the order of rows makes of a change, and less, is rounding
ULPS = 8 * 2.0**-23  # of an array's largest element, and of its change: what one sum more may make
LARGER = 1 + 2.0**-23
MOST = 2.0**-7  # of a change: more is not made by rounding, and the order of the rows means something


def permuted(data: Any, turn: int = 3) -> Any:
    """Return a batch with its rows in another order: of all arrays in it that have as many; None if it has no rows."""
    counts = {len(each) for each in _arrays(data)}
    if len(counts) != 1 or (count := counts.pop()) < 2:
        return None
    order = np.random.default_rng(turn).permutation(count)
    return _mapped(data, lambda each: each[order])


def larger(data: Any) -> Any:
    """Return a batch with all fractions one or two last bits larger; None if it has none."""
    fractions = [each for each in _arrays(data) if "float" in str(getattr(each, "dtype", ""))]
    return _mapped(data, lambda each: each * LARGER if "float" in str(each.dtype) else each) if fractions else None


def halved(data: Any, count: int) -> list[Any] | None:
    """Return a batch as so many with as many rows each; None if it has no such rows."""
    counts = {len(each) for each in _arrays(data)}
    if len(counts) != 1 or (rows := counts.pop()) % count or rows < count:
        return None
    size = rows // count
    return [_mapped(data, lambda each, at=at: each[at * size : (at + 1) * size]) for at in range(count)]


def _arrays(data: Any) -> list[Any]:
    if isinstance(data, Mapping):
        return [each for value in data.values() for each in _arrays(value)]
    if isinstance(data, (list, tuple)):
        return [each for value in data for each in _arrays(value)]
    return [data] if len(getattr(data, "shape", ())) else []


def _mapped(data: Any, change: Any) -> Any:
    if isinstance(data, Mapping):
        return type(data)({key: _mapped(value, change) for key, value in data.items()})  # type: ignore[call-arg]
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_mapped(value, change) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(_mapped(value, change) for value in data)
    return change(data) if len(getattr(data, "shape", ())) else data


class Rounding:
    """The tolerance of a loop: what changes where the rows of its batches change places."""

    def __init__(self, make: Make, batches: Sequence[Batch], scale: float) -> None:
        self._make, self._batches, self._scale = make, batches, scale
        self._runs: dict[Callable[[Any], Any], Run] = {}

    def _changed(self, step: int, before: State, left: State) -> dict[tuple[str, ...], float]:
        """Return by kind how far the change in a step is from the same one of other batches that differ by rounding.

        Their rows are in another order; where that means something, or there are none, their numbers are one or two
        last bits larger.
        """
        for way in (permuted, larger):
            others = [replace(each, data=way(each.data)) for each in self._batches[: step + 1]]
            if all(each.data is not None for each in others):
                run = self._runs.get(way) or self._runs.setdefault(way, begin(self._make, self._scale))
                advance(run, others[len(run.states) - 1 :])
                found = {_key(kind[0]): distance(kind) for kind in kinds(before, left, run.states[step + 1])}
                if max(found.values(), default=0.0) < MOST:
                    return found
        return {}

    def beyond(self, before: State, left: State, right: State, step: int) -> list[Difference]:
        """Return the differences of two states after a step, of kinds that are together too large for rounding.

        A kind is all of one owner and one type, and in the state of an optimizer of one name, as ``exp_avg``: some of
        them, as the bias of the keys of an attention, are nothing but rounding.
        """
        far = [kind for kind in kinds(before, left, right) if distance(kind) > ULPS]
        if not far:
            return []
        allowed = self._changed(step, before, left)
        found: list[Difference] = []
        for kind in far:
            if distance(kind) > TIMES * allowed.get(_key(kind[0]), 0.0) + ulps(kind):
                found += [each for each in kind if each.left is None or each.right is None or each.size() > 0]
        return found


def kinds(before: State, left: State, right: State) -> list[list[Difference]]:
    """Return all arrays of two states by their kinds, but for the data and what is logged."""
    found: dict[tuple[str, ...], list[Difference]] = {}
    for name in dict.fromkeys([*left, *right]):
        each = Difference(name, left.get(name), right.get(name), before.get(name))
        if name.partition(".")[0] not in (LOGGED, "data"):
            found.setdefault(_key(each), []).append(each)
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
            before = 0.0 if each.before is None else each.before.astype(np.float64)
            total += float(((each.left.astype(np.float64) - before) ** 2).sum())
    return math.sqrt(total)


def distance(kind: Sequence[Difference]) -> float:
    """Return the distance of two changes, relative to the change."""
    apart = 0.0
    for each in kind:
        if each.left is None or each.right is None or each.left.shape != each.right.shape:
            return math.inf
        if each.left.dtype.kind in "fiu":
            with np.errstate(invalid="ignore"):
                apart += float(((each.right.astype(np.float64) - each.left.astype(np.float64)) ** 2).sum())
    if apart == 0:
        return 0.0
    change = _change(kind)
    return math.sqrt(apart) / change if change > 0 and math.isfinite(apart) else math.inf
