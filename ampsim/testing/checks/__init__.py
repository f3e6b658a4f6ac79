"""The checks, one module a level. Importing this package registers all of them."""

from ampsim.testing.checks import checkpoint as checkpoint
from ampsim.testing.checks import drop_in as drop_in
from ampsim.testing.checks import numerics as numerics
from ampsim.testing.checks import optimizers as optimizers
from ampsim.testing.checks import protocol as protocol
from ampsim.testing.checks import state_machine as state_machine
from ampsim.testing.checks import threads as threads
