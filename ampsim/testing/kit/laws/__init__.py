"""The laws of scalers, a module or two per level. Importing this package registers all of them in `LAWS`.

Where torch is not installed only the first two are there. A new law goes into the module of its level, or into
`trajectory` if it needs no tensor; a scaler that is known to break one into `ampsim.testing.known`.
"""

import importlib.util

from ampsim.testing.kit.check import LAWS
from ampsim.testing.kit.laws import state_machine, trajectory

if importlib.util.find_spec("torch"):
    from ampsim.testing.kit.laws import checkpoint as checkpoint
    from ampsim.testing.kit.laws import drop_in as drop_in
    from ampsim.testing.kit.laws import numerics as numerics
    from ampsim.testing.kit.laws import optimizers as optimizers
    from ampsim.testing.kit.laws import protocol as protocol
    from ampsim.testing.kit.laws import threads as threads

__all__ = ["LAWS", "state_machine", "trajectory"]
