"""Which backward passes are to have an inf, and runs whose losses let them in."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampsim.testing.loop.rows import with_inf
from ampsim.testing.loop.run import NOTHING, Fault, Planted, Run
from ampsim.testing.loop.state import differences


@dataclass
class Faults:
    """Counts backward passes and says which of them are faulty.

    Attributes:
        fault: what is planted.
        passes: how many there have been.
    """

    fault: Fault = NOTHING
    passes: int = 0

    def factor(self, _: object = None) -> np.float32:
        """Return what the gradient of this backward pass is multiplied by: 1, or what is planted."""
        self.passes += 1
        is_bad = self.fault.place != "output" and self.fault.only in (None, self.passes - 1)
        return np.float32(self.fault.value if is_bad else 1.0)

    def loss(self, _: object = None) -> np.float32:
        """Return what the loss itself is multiplied by."""
        return np.float32(self.fault.value if self.fault.place == "loss" else 1.0)


FAULTS = Faults()  # one for all runs, as compiled programs know it


class FaultyRun(Run):
    """A run whose losses go through `FAULTS`, which tells that its scaler was used; updates show in that's state."""

    _passes = False

    @property
    def used(self) -> bool:
        return self._passes or bool(self.found)

    def step(self, data: Any) -> None:
        before, scale, passes = self.scaler_arrays(), self.scale, FAULTS.passes
        bad = with_inf(data) if FAULTS.fault.place == "output" else None
        self._train(data if bad is None else bad)
        self._passes |= passes < FAULTS.passes
        if differences(before, self.scaler_arrays()):
            self.found.append(self.scale < scale)

    @abstractmethod
    def _train(self, data: Any) -> None:
        """Train on what one batch holds."""

    @contextmanager
    def planting(self, fault: Fault = Fault()) -> Iterator[Planted]:  # noqa: B008 - frozen
        planted = Planted()
        FAULTS.passes, FAULTS.fault = 0, fault
        try:
            yield planted
        finally:
            FAULTS.fault = NOTHING
            planted.passes |= {"": FAULTS.passes} if FAULTS.passes else {}
            planted.outputs = 1  # in the data, as no output is seen
