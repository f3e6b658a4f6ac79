"""State that may change in a skipped step, recognized by its behavior, except for one word in its
name.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ampsim.testing.loop.state import Array, Difference, State, moved, same

STEPS = r"step|update"  # in the name of a count of steps


@dataclass
class Excuses:
    """Runs of the skipped iteration without a fault, which show the state that may change in it.

    Attributes:
        start: What was carried before the iteration.
        clean: After it, with finite gradients.
        early: When the first gradient of it arrived.
        play_others: Returns what the iteration leaves on the data of other batches.
        trained: The names of the parameters.
        owners: See `Run.owners`.
    """

    start: State
    clean: State
    early: State
    play_others: Callable[[], State]
    trained: Collection[str]
    owners: Mapping[str, str]

    @cached_property
    def otherwise(self) -> State:
        """After the iteration on the data of another batch: what differs from `clean` depends on
        the data.
        """
        return self.play_others()

    def split(
        self, end: State, scales: Iterable[float]
    ) -> tuple[list[Difference], dict[str, bool]]:
        """Return what may not have changed in the skipped step; and by name whether allowed changes
        are inputs.

        An input, as a generator's state or a hidden state, makes the next batch another one; a
        count does not.
        """
        found = moved(self.start, end)
        known = {*scales}
        excused: dict[str, bool] = {}
        for each in found:
            is_parameter = each.name in self.trained
            is_own = is_parameter or each.name in self.owners
            is_input = not is_own and self._is_input(each)
            is_number = not is_own and self._is_number(each, known)
            is_early = not is_parameter and self._is_early(each)
            if is_input or is_number or is_early:
                excused[each.name] = is_input
        return [each for each in found if each.name not in excused], excused

    def _is_early(self, each: Difference) -> bool:
        """Return whether it had moved before the first gradient arrived, as a rate that is set for
        each batch.
        """
        return each.name in self.early and same(each.right, self.early[each.name])

    def _is_input(self, each: Difference) -> bool:
        """Return whether it moves as in a finite step, and follows the data or has no fractions, as
        a generator's.
        """
        if not same(each.right, self.clean.get(each.name)):
            return False
        if each.right is not None and each.right.size > 1 and _is_whole(each.right):
            return True
        return not same(each.right, self.otherwise.get(each.name))

    def _is_number(self, each: Difference, scales: set[float]) -> bool:
        """Return whether it is a copy of the scale, or a number that counts skips or batches."""
        was_copy = each.left is None or is_copy(each.left, scales)
        if was_copy and is_copy(each.right, scales):
            return True
        if each.right is None or each.right.size != 1:
            return False
        moves_in_skips_only = same(each.left, self.clean.get(each.name))
        return moves_in_skips_only or (_is_whole(each.right) and self._is_count(each))

    def _is_count(self, each: Difference) -> bool:
        """Return whether a whole number counts batches, or finite steps since a skip; one of steps
        is named so.
        """
        if re.search(STEPS, each.name.lower()):
            return False
        clean = self.clean.get(each.name)
        left = each.left
        if same(each.right, clean):
            return True
        if left is None or clean is None:
            return False
        return bool(np.all(clean == left + 1) and np.all(each.right == 0))


def _is_whole(array: Array) -> bool:
    """Return whether an array has whole numbers or text."""
    if array.dtype.kind == "f":
        return bool(np.all(array == np.floor(array)))
    return array.dtype.kind in "iuUS"


def is_copy(array: Array | None, scales: set[float]) -> bool:
    """Return whether every element of an array is one of these scales, or the inverse of one."""
    if array is None or not array.size or array.dtype.kind not in "iuf":
        return False
    positive = {scale for scale in scales if scale > 0}
    known = positive | {1 / scale for scale in positive}
    return known.issuperset(array.ravel().tolist())
