"""The backward passes of a compiled program in which to seed an inf."""

from dataclasses import dataclass

import numpy as np

from ampsim.testing.loop.run import NOTHING, Fault


@dataclass
class Faults:
    """Count backward passes, and seed a fault in some of them.

    Attributes:
        fault: the fault to seed.
        passes: how many of a scaled loss there have been.
    """

    fault: Fault = NOTHING
    passes: int = 0

    def factor(self, _: object = None) -> np.float32:
        """Return the factor of the gradient of this backward pass: 1, or the fault."""
        self.passes += 1
        is_bad = self.fault.only in (None, self.passes - 1)
        return np.float32(self.fault.value if is_bad else 1.0)

    def plant(self, fault: Fault) -> None:
        """Restart the counts, with a fault."""
        self.fault = fault
        self.passes = 0

    def loss(self, _: object = None) -> np.float32:
        """Return what the loss itself is multiplied by."""
        return np.float32(self.fault.value if self.fault.place == "loss" else 1.0)


FAULTS = Faults()  # one for all runs, as compiled programs know it
