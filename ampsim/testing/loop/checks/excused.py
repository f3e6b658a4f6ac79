"""State that may change in a skipped step. It is recognized by its behavior, except for one word in its name."""

import re
from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np

from ampsim.testing.loop.run import Run
from ampsim.testing.loop.state import LOGGED, Array, Difference, State, differences, same

DATA = "data"
STEPS = r"step|update"  # the name of a count of steps
ROUNDING = 8 * 2.0**-23  # of the largest element: what is added to a parameter and taken away again
MANY = 64  # whole numbers of one owner that move together are the state of a generator


class Excuses:
    """Runs of the skipped iteration without a fault, which show the state that may change in it.

    Attributes:
        start: what was carried before the iteration.
        clean: after it, with finite gradients.
        early: when the first gradient of it arrived.
        trained: the names of the parameters.
        owners: see `Run.owners`.
    """

    def __init__(
        self, start: State, clean: State, early: State, run: Run, otherwise: Callable[[], State]
    ) -> None:
        self.start, self.clean, self.early = start, clean, early
        self.trained, self.owners, self._otherwise = {*run.parameters()}, run.owners(), otherwise

    @cached_property
    def otherwise(self) -> State:
        """After the iteration on the data of another batch: what differs from `clean` depends on the data."""
        return self._otherwise()

    def remaining(
        self, end: State, scales: Iterable[float]
    ) -> tuple[list[Difference], dict[str, bool]]:
        """Return what may not have changed in the skipped step; and by name whether allowed changes are inputs.

        An input, as a generator's state or a hidden state, makes the next batch another one; a count does not.
        """
        found = moved(self.start, end)
        generators, copies = self._generators(found), {*scales}
        excused: dict[str, bool] = {}
        for each in found:
            is_input = self._is_forward(each) or each.name in generators
            if (
                is_input
                or self._is_early(each)
                or self.is_copied(each, copies)
                or self._counts(each)
            ):
                excused[each.name] = is_input
        return [each for each in found if each.name not in excused], excused

    def _is_forward(self, each: Difference) -> bool:
        """Return whether an array follows the data and no gradient, as a hidden state or a mean of activations."""
        return (
            each.name not in self.owners
            and each.name not in self.trained
            and same(each.right, self.clean.get(each.name))
            and not same(each.right, self.otherwise.get(each.name))
        )

    def _is_early(self, each: Difference) -> bool:
        """Return whether it had moved before the first gradient arrived, and not since: what comes next will show it.

        Parameters are promised whenever they move.
        """
        return (
            each.name not in self.trained
            and each.name in self.early
            and same(each.right, self.early.get(each.name))
        )

    def is_copied(self, each: Difference, scales: Iterable[float]) -> bool:
        """Return whether it is a copy of the scale, as logs have it."""
        known = {*scales}
        return (
            each.name not in self.trained
            and each.name not in self.owners
            and is_copy(each.right, known)
            and (each.left is None or is_copy(each.left, known))
        )

    def _counts(self, each: Difference) -> bool:
        """Return whether it is a number that counts skips, batches, or finite steps, and is not named for steps."""
        numbers = [array for array in (each.left, each.right) if array is not None]
        if each.name in self.trained or any(array.size != 1 for array in numbers):
            return False
        is_owned = each.name in self.owners
        if same(each.left, self.clean.get(each.name)):  # moves in a skipped step alone
            return not is_owned or all(array.dtype.kind in "biu" for array in numbers)
        if is_owned:
            return False
        whole = all(
            float(np.ravel(array)[0]).is_integer() for array in numbers if array.dtype.kind in "iuf"
        )
        counts = whole and all(array.dtype.kind in "iuf" for array in numbers) and len(numbers) == 2
        if not counts or re.search(STEPS, each.name.lower()):
            return False
        clean, (before, now) = (
            self.clean.get(each.name),
            (float(np.ravel(array)[0]) for array in numbers),
        )
        return same(each.right, clean) or (
            now == 0 and same(np.asarray(before + 1), np.asarray(clean, float))
        )

    def _generators(self, found: list[Difference]) -> set[str]:
        """Return the names of random number generator states, which a finite step changes in the same way.

        By its type: unsigned numbers or text, or very many whole numbers of one owner.
        """
        alike = [
            each
            for each in found
            if each.right is not None
            and each.name not in self.owners
            and same(each.right, self.clean.get(each.name))
        ]
        owners: dict[str, list[str]] = {}
        for each in alike:
            owners.setdefault(each.name.partition(".")[0], []).append(each.name)
        many = {name for names in owners.values() if len(names) > MANY for name in names}
        return many | {
            each.name
            for each in alike
            if each.right is not None
            and (
                each.right.dtype.kind in "US"
                or (each.right.dtype.kind == "u" and each.right.size > 1)
            )
        }


def moved(left: State, right: State) -> list[Difference]:
    """Return what differs of two states, but for the data and what is logged."""
    return [
        each for each in differences(left, right) if not each.name.startswith((f"{LOGGED}.", DATA))
    ]


def unlike(found: Iterable[Difference], trained: Iterable[str]) -> list[Difference]:
    """Return the differences without those parameters that are apart by the rounding of adding and subtracting."""
    names = {*trained}
    return [each for each in found if each.name not in names or each.size() > ROUNDING]


def is_copy(array: Array | None, scales: set[float]) -> bool:
    """Return whether every element of an array is one of these scales, or the inverse of one."""
    if array is None or not array.size or array.dtype.kind not in "iuf":
        return False
    known = {number for scale in scales if scale > 0 for number in (scale, 1 / scale)}
    return all(float(each) in known for each in array.ravel())
