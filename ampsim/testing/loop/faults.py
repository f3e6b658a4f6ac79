"""Which backward passes are to have an inf."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np


@dataclass
class Faults:
    """Counts backward passes and says which of them are faulty.

    Attributes:
        wanted: whether the pass of this index is.
        passes: how many there have been.
    """

    wanted: Callable[[int], bool] = lambda _: False
    passes: int = 0

    def factor(self, _: object = None) -> np.float32:
        """Return what the gradient of this backward pass is multiplied by: 1, or inf."""
        self.passes += 1
        return np.float32(np.inf if self.wanted(self.passes - 1) else 1.0)

    @contextmanager
    def planted(self, only: int | None) -> Iterator[dict[str, int]]:
        """Make every pass faulty, or this one; the mapping has their number in the end, if there were any."""
        found: dict[str, int] = {}
        self.passes, self.wanted = 0, lambda index: only in (None, index)
        try:
            yield found
        finally:
            self.wanted = lambda _: False
            found |= {"loss": self.passes} if self.passes else {}


FAULTS = Faults()  # one for all runs, as compiled programs know it
