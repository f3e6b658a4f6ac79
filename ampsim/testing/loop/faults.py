"""Which backward passes are to have an inf, and runs whose losses let them in."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampsim.testing.loop.run import Run
from ampsim.testing.loop.state import differences


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


FAULTS = Faults()  # one for all runs, as compiled programs know it


class FaultyRun(Run):
    """A run whose losses go through `FAULTS`, which tells that its scaler was used; updates show in that's state."""

    _passes = False

    @property
    def used(self) -> bool:
        return self._passes or bool(self.found)

    def step(self, data: Any) -> None:
        before, scale, passes = self.scaler_arrays(), self.scale, FAULTS.passes
        self._train(data)
        self._passes |= passes < FAULTS.passes
        if differences(before, self.scaler_arrays()):
            self.found.append(self.scale < scale)

    @abstractmethod
    def _train(self, data: Any) -> None:
        """Train on what one batch holds."""

    @contextmanager
    def planting(self, only: int | None = None) -> Iterator[Mapping[str, int]]:
        found: dict[str, int] = {}
        FAULTS.passes, FAULTS.wanted = 0, lambda index: only in (None, index)
        try:
            yield found
        finally:
            FAULTS.wanted = lambda _: False
            found |= {"loss": FAULTS.passes} if FAULTS.passes else {}
