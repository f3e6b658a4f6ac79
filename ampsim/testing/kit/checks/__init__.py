"""The checks, one module per level. Importing this package registers all of them in `CHECKS`.

A new law of scalers goes into the module of its level, and a scaler that is known to break one into
`ampsim.testing.known`: nothing else in `ampsim.testing` need be touched for either.
"""

from ampsim.testing.kit.check import CHECKS
from ampsim.testing.kit.checks import checkpoint, drop_in, numerics, optimizers, protocol, state_machine, threads

__all__ = ["CHECKS", "checkpoint", "drop_in", "numerics", "optimizers", "protocol", "state_machine", "threads"]
