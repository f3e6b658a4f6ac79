"""What a loop carries, as arrays by name, and where two such states differ."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np

from ampsim.testing.loop.loop import Loop, LoopError

Array = np.ndarray[Any, np.dtype[Any]]
State = dict[str, Array]
LOGGED = "logged"


def snapshot(loop: Loop, unpack: Callable[[Any], Any]) -> State:
    """Return copies of all that the loop carries and has logged, by dotted names; see `Run.unpack`.

    Raises:
        LoopError: A value of ``state`` or ``logged`` cannot be compared.
    """
    logged = loop.logged() if loop.logged else {}
    held = dict(loop.state) | {f"{LOGGED}.{key}": value for key, value in logged.items()}
    return {
        name: array
        for key, value in held.items()
        for name, array in _leaves(key, value, unpack, named=True)
    }


def _leaves(
    name: str, value: Any, unpack: Callable[[Any], Any], *, named: bool = False
) -> Iterator[tuple[str, Array]]:
    """Yield arrays with their names. A value that is not an array raises if `named` by the user, else it is skipped."""
    value = unpack(value)
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(f"{name}.{key}", each, unpack)
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _leaves(f"{name}.{index}", each, unpack)
    elif isinstance(value, (Number, np.ndarray, np.generic)) or hasattr(value, "__array__"):
        array = np.array(value)
        yield name, np.array(repr(value)) if array.dtype == object else array
    elif callable(value) and named:
        yield from _leaves(name, value(), unpack, named=True)
    elif value is not None and named:
        raise LoopError(
            f"{name} is of type {type(value).__name__}: expected an object with state_dict(), a tensor, an array, a "
            "number, or a callable that returns one"
        )


@dataclass(frozen=True)
class Difference:
    """One array that is not the same in two runs.

    Attributes:
        name: as in `snapshot`.
        left: of the run that the other is held against; None where it has none.
        right: of the other run; None where it has none.
        before: of both runs, before the step; None where it had none.
    """

    name: str
    left: Array | None
    right: Array | None
    before: Array | None = None

    def factor(self) -> float | None:
        """Return by what the change of the left run is multiplied in the right one; None if by no one number."""
        if self.left is None or self.right is None or self.left.shape != self.right.shape:
            return None
        left, right = (array.astype(np.float64).ravel() for array in (self.left, self.right))
        if (
            self.before is not None
            and self.before.shape == self.left.shape
            and not self.name.startswith(f"{LOGGED}.")
        ):
            left, right = left - self.before.ravel(), right - self.before.ravel()
        square = float(left @ left)
        if not (0 < square < np.inf and np.isfinite(right).all()):
            return None
        factor = float(left @ right) / square
        return (
            factor if np.linalg.norm(right - factor * left) <= np.linalg.norm(right) / 64 else None
        )

    def size(self) -> float:
        """Return the largest distance of two elements, relative to the largest element; inf where there is none."""
        if (
            self.left is None
            or self.right is None
            or self.left.shape != self.right.shape
            or not self.left.size
        ):
            return np.inf
        left, right = self.left.astype(np.float64), self.right.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            distance = float(np.abs(right - left).max() / np.abs(left).max())
        return distance if np.isfinite(distance) else np.inf

    def __str__(self) -> str:
        if self.left is None or self.right is None:
            return f"{self.name} exists in only one run"
        if self.left.shape != self.right.shape or self.left.dtype != self.right.dtype:
            kinds = (f"{array.dtype}{list(array.shape)}" for array in (self.left, self.right))
            return f"{self.name} is {' and '.join(kinds)}"
        differ = np.array(
            [
                a.tobytes() != b.tobytes()
                for a, b in zip(self.left.ravel(), self.right.ravel(), strict=True)
            ]
        ).reshape(self.left.shape)
        index = tuple(int(each) for each in np.argwhere(differ)[0])
        if self.left.dtype.kind not in "fiu":
            return f"{self.name}{[*index] if index else ''} is {self.right[index]!s}, expected {self.left[index]!s}"
        with np.errstate(invalid="ignore"):
            apart = np.abs(self.right.astype(np.float64) - self.left.astype(np.float64))
        apart = np.where(differ, np.where(np.isfinite(apart), apart, np.inf), -1.0)
        index = tuple(map(int, np.unravel_index(np.argmax(apart), apart.shape)))
        most = float(np.abs(self.left.astype(np.float64)).max())
        of = (
            f", {apart[index] / most:.2g} of its largest"
            if index and 0 < most < np.inf > apart[index]
            else ""
        )
        where = f"{[*index] if index else ''}"
        return (
            f"{self.name}{where} is {self.right[index]!s}, expected {self.left[index]!s}, "
            f"{apart[index]:.3g} apart{of}"
        )


def differences(left: State, right: State, before: State | None = None) -> list[Difference]:
    """Return the arrays that are not equal bit for bit, in the order of the left state."""
    names = dict.fromkeys([*left, *right])
    return [
        Difference(name, left.get(name), right.get(name), (before or {}).get(name))
        for name in names
        if not same(left.get(name), right.get(name))
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


def kinds(before: State, left: State, right: State) -> list[list[Difference]]:
    """Return all arrays of two states by their kinds, but for the data and what is logged.

    A kind is all of one owner and one type, and in the state of an optimizer of one name, as ``exp_avg``. A single
    array may be nothing but rounding, as the bias of the keys of an attention.
    """
    found: dict[object, list[Difference]] = {}
    for name in dict.fromkeys([*left, *right]):
        each = Difference(name, left.get(name), right.get(name), before.get(name))
        if name.partition(".")[0] not in (LOGGED, "data"):
            found.setdefault(_key(each), []).append(each)
    return [*found.values()]


def _key(each: Difference) -> tuple[str, ...]:
    owner, _, rest = each.name.partition(".")
    last = rest.rpartition(".")[2] if rest.startswith(("state.", "param_groups.")) else ""
    return owner, last, each.left.dtype.kind if each.left is not None else ""


def distance(kind: Iterable[Difference]) -> float:
    """Return the distance of two changes, relative to the change; inf if only one of them is a change."""
    apart = change = 0.0
    for each in kind:
        if each.left is None or each.right is None or each.left.shape != each.right.shape:
            return np.inf
        if each.left.dtype.kind in "fiu":
            before = each.before
            if before is None or before.shape != each.left.shape:
                before = np.zeros_like(each.left)
            apart += _squares(each.right, each.left)
            change += _squares(each.left, before)
    if apart == 0:
        return 0.0
    return float(np.sqrt(apart / change)) if change > 0 and np.isfinite(apart) else np.inf


def _squares(to: Array, of: Array) -> float:
    """Return the sum of squares of the differences of elements; an inf that stays one makes none."""
    to, of = to.astype(np.float64), of.astype(np.float64)
    moved = to != of
    return float(((to[moved] - of[moved]) ** 2).sum())


def beyond(tolerance: float, before: State, left: State, right: State) -> list[Difference]:
    """Return the differences of two states, of kinds whose changes are apart by more than a relative tolerance."""
    far = (kind for kind in kinds(before, left, right) if distance(kind) > tolerance)
    return [each for kind in far for each in kind if not same(each.left, each.right)]
