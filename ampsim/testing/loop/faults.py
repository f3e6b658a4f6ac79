"""The backward passes of a compiled program in which to seed an inf."""

from dataclasses import dataclass

import numpy as np

from ampsim.testing.loop.run import NOTHING, Fault
from ampsim.testing.loop.state import Array


@dataclass
class Faults:
    """Count backward passes, and seed a fault in some of them.

    Attributes:
        fault: the fault to seed.
        passes: how many of a scaled loss there have been.
        arrived: how many of these have reached parameters whose gradients can be corrupted one by one.
    """

    fault: Fault = NOTHING
    passes: int = 0
    arrived: int = 0

    def factor(self, _: object = None) -> np.float32:
        """Return the factor of the gradient of this backward pass: 1, or the fault."""
        self.passes += 1
        is_bad = self.fault.place != "output" and self.fault.only in (None, self.passes - 1)
        return np.float32(self.fault.value if is_bad and not self.fault.name else 1.0)

    def elements(self, _: object = None) -> Array:
        """Return what the last elements of the gradients of `ENDS` become in this pass; 1 leaves one as it is."""
        self.arrived += 1
        is_bad = self.fault.only in (None, self.arrived - 1)
        values = [self.fault.value if is_bad and name == self.fault.name else 1.0 for name in ENDS]
        return np.array(values, np.float32)

    def plant(self, fault: Fault) -> None:
        """Restart the counts, with a fault."""
        self.fault, self.passes, self.arrived = fault, 0, 0

    def loss(self, _: object = None) -> np.float32:
        """Return what the loss itself is multiplied by."""
        return np.float32(self.fault.value if self.fault.place == "loss" else 1.0)


ENDS = ("the first parameter", "the last parameter")  # of those that a loss is differentiated by
FAULTS = Faults()  # one for all runs, as compiled programs know it
