"""What a loop carries, as arrays by name, and where two such states differ."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np

from ampsim.testing.loop.loop import LoopError

Array = np.ndarray[Any, np.dtype[Any]]
State = dict[str, Array]
LOGGED = "logged"
DATA = "data"
NUMBERS = "biuf"  # kinds of dtypes
STRAIGHT = 1 / 64  # of a change, that may differ from a multiple of another one


def snapshot(
    state: Mapping[str, Any], unpack: Callable[[Any], Any], logged: Mapping[str, Any]
) -> State:
    """Return copies of all that the loop carries and has logged, by dotted names; see `Run.unpack`.

    Raises:
        LoopError: A value of ``state`` or ``logged`` cannot be compared.
    """
    held = {**state, **{f"{LOGGED}.{key}": value for key, value in logged.items()}}
    return {
        name: array
        for key, value in held.items()
        for name, array in _leaves(key, value, unpack, named=True)
    }


def _leaves(
    name: str, value: Any, unpack: Callable[[Any], Any], *, named: bool = False
) -> Iterator[tuple[str, Array]]:
    """Yield arrays with their names. A value that is not an array raises if `named` by the user,
    else it is skipped.
    """
    value = unpack(value)
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(f"{name}.{key}", each, unpack)
    elif isinstance(value, (Number, np.ndarray, np.generic)) or hasattr(
        value, "__array__"
    ):
        yield name, _array(value)
    elif isinstance(value, (list, tuple)):
        if value and all(isinstance(each, Number) for each in value):
            yield name, _array(value)  # as the state of Python's generator
            return
        for index, each in enumerate(value):
            yield from _leaves(f"{name}.{index}", each, unpack)
    elif callable(value) and named:
        yield from _leaves(name, value(), unpack, named=True)
    elif value is not None and named:
        raise LoopError(
            f"{name} is of type {type(value).__name__}: expected an object with state_dict(), a tensor, an array, a "
            "number, or a callable that returns one"
        )


def _array(value: Any) -> Array:
    array = np.array(value)
    return np.array(repr(value)) if array.dtype == object else array


@dataclass(frozen=True)
class Difference:
    """One array that is not the same in two runs.

    Attributes:
        name: As in `snapshot`.
        left: Of the run that the other is compared with; None where it has none.
        right: Of the other run; None where it has none.
        before: Of both runs, before the step; None where it had none.
    """

    name: str
    left: Array | None
    right: Array | None
    before: Array | None = None

    @property
    def changes(self) -> tuple[Array, Array] | None:
        """The changes of both runs as float64; of what is logged, the values. None if they cannot
        be compared.
        """
        left = self.left
        right = self.right
        before = self.before
        if left is None or right is None or left.shape != right.shape:
            return None
        if left.dtype.kind not in NUMBERS:
            return None
        lefts = _flat(left)
        rights = _flat(right)
        is_logged = self.name.startswith(f"{LOGGED}.")
        if is_logged or before is None or before.shape != left.shape:
            return lefts, rights
        start = _flat(before)
        with np.errstate(invalid="ignore"):
            return lefts - start, rights - start

    def factor(self) -> float | None:
        """Return by what the change of the left run is multiplied in the right one; None if by no
        one number.
        """
        if self.changes is None:
            return None
        left, right = self.changes
        square = float(left @ left)
        if not (0 < square < np.inf and np.isfinite(right).all()):
            return None
        factor = float(left @ right) / square
        rest = np.linalg.norm(right - factor * left)
        return factor if rest <= STRAIGHT * np.linalg.norm(right) else None

    @property
    def is_poisoned(self) -> bool:
        """Whether an element has become inf or NaN."""
        right = self.right
        if right is None or right.dtype.kind != "f":
            return False
        return not np.isfinite(right).all()

    def __str__(self) -> str:
        left = self.left
        right = self.right
        if left is None or right is None:
            return f"{self.name} exists in only one run"
        if left.shape != right.shape or left.dtype != right.dtype:
            kinds = (f"{array.dtype}{list(array.shape)}" for array in (left, right))
            return f"{self.name} is {' and '.join(kinds)}"
        apart = left != right
        if left.dtype.kind in NUMBERS:
            with np.errstate(invalid="ignore"):
                apart = np.abs(_flat(right) - _flat(left)).reshape(left.shape)
        # A NaN counts as the largest.
        index = np.unravel_index(np.argmax(apart), apart.shape)
        where = [int(each) for each in index] or ""
        return f"{self.name}{where} is {right[index]!s}, expected {left[index]!s}"


def _flat(array: Array) -> Array:
    return array.astype(np.float64).ravel()


def differences(
    left: State, right: State, before: State | None = None
) -> list[Difference]:
    """Return the arrays that are not equal bit for bit, in the order of the left state."""
    names = dict.fromkeys([*left, *right])
    return [
        Difference(name, left.get(name), right.get(name), (before or {}).get(name))
        for name in names
        if not same(left.get(name), right.get(name))
    ]


def moved(left: State, right: State) -> list[Difference]:
    """Return what differs of two states, but for the data and what is logged."""
    passing = (f"{LOGGED}.", DATA)
    return [
        each for each in differences(left, right) if not each.name.startswith(passing)
    ]


def same(left: Array | None, right: Array | None) -> bool:
    """Return whether two arrays have equal bits."""
    if left is None or right is None:
        return left is right
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
    )


def beyond(
    tolerance: float, before: State, left: State, right: State
) -> list[Difference]:
    """Return the differences of two states, of kinds whose changes are apart by more than a
    relative tolerance.

    A kind is all of one owner and one type, and in the state of an optimizer of one name, as
    ``exp_avg``. A single array may be nothing but rounding, as the bias of the keys of an
    attention.
    """
    kinds: dict[object, list[Difference]] = {}
    for name in dict.fromkeys([*left, *right]):
        each = Difference(name, left.get(name), right.get(name), before.get(name))
        owner, _, rest = name.partition(".")
        is_optimizers = rest.startswith(("state.", "param_groups."))
        last = rest.rpartition(".")[2] if is_optimizers else ""
        dtype = each.left.dtype.kind if each.left is not None else ""
        if owner not in (LOGGED, DATA):
            kinds.setdefault((owner, last, dtype), []).append(each)
    found: list[Difference] = []
    for kind in kinds.values():
        if _distance(kind) > tolerance:
            found += [each for each in kind if not same(each.left, each.right)]
    return found


def _distance(kind: Iterable[Difference]) -> float:
    """Return the distance of two changes, relative to the change; inf if only one of them is a
    change.
    """
    apart = change = 0.0
    for each in kind:
        if each.changes is None:
            if not same(each.left, each.right):
                return np.inf
            continue
        left, right = each.changes
        # An inf that stays one is no distance, nor is a NaN.
        differs = (left != right) & ~(np.isnan(left) & np.isnan(right))
        finite = left[np.isfinite(left)]
        with np.errstate(invalid="ignore", over="ignore"):
            gap = right[differs] - left[differs]
            apart += float(gap @ gap)
            change += float(finite @ finite)
    if apart == 0:
        return 0.0
    if change == 0 or not np.isfinite(apart):
        return np.inf
    return float(np.sqrt(apart / change))
