"""The checks of scalers, a module or two per level. Importing this package registers all of them in `CHECKS`.

Where torch is not installed only the first two are there. A new check goes into the module of its level, or into
`trajectory` if it needs no tensor; a scaler that is known to break one into `ampsim.testing.known_failures`.
"""

import importlib.util

from ampsim.testing.kit.check import CHECKS
from ampsim.testing.kit.checks import state_machine, trajectory

if importlib.util.find_spec("torch"):
    from ampsim.testing.kit.checks import checkpoint as checkpoint
    from ampsim.testing.kit.checks import drop_in as drop_in
    from ampsim.testing.kit.checks import numerics as numerics
    from ampsim.testing.kit.checks import optimizers as optimizers
    from ampsim.testing.kit.checks import protocol as protocol
    from ampsim.testing.kit.checks import threads as threads

__all__ = ["CHECKS", "state_machine", "trajectory"]
