"""The checks, one module a level. Importing this package registers all of them."""

from ampsim.testing.kit.checks import checkpoint as checkpoint
from ampsim.testing.kit.checks import drop_in as drop_in
from ampsim.testing.kit.checks import numerics as numerics
from ampsim.testing.kit.checks import optimizers as optimizers
from ampsim.testing.kit.checks import protocol as protocol
from ampsim.testing.kit.checks import state_machine as state_machine
from ampsim.testing.kit.checks import threads as threads
