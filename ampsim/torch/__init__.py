"""Floor 1: loss scaling in torch.

>>> from ampsim.torch import GradScaler
>>> scaler = GradScaler("cpu", init_scale=1024.0)
>>> scaler.get_scale()
1024.0
"""

from ampsim.torch.grad_scaler import GradScaler as GradScaler
from ampsim.torch.optimizer_thread import OptimizerThread as OptimizerThread
from ampsim.torch.squares import norm_hooks as norm_hooks
from ampsim.torch.tickets import ClosedError as ClosedError
from ampsim.torch.tickets import Ticket as Ticket
from ampsim.torch.uncompiled import leave_alone_package as _leave_alone_package

_leave_alone_package("ampsim")
