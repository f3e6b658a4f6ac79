"""Floor 1: loss scaling in torch.

>>> from ampsim.torch import GradScaler
>>> scaler = GradScaler("cpu", init_scale=1024.0)
>>> scaler.get_scale()
1024.0
"""

from ampsim.torch import roundpipe as roundpipe  # nobody asks for it here: it is loaded to be marked below
from ampsim.torch.dynamo import leave_alone_package as _leave_alone_package
from ampsim.torch.grad_scaler import GradScaler as GradScaler
from ampsim.torch.gradients.norms import norm_hooks as norm_hooks
from ampsim.torch.pipelined import Pipelined as Pipelined
from ampsim.torch.threads.optimizer_thread import OptimizerThread as OptimizerThread
from ampsim.torch.threads.register import ClosedError as ClosedError
from ampsim.torch.threads.register import Ticket as Ticket

_leave_alone_package("ampsim")  # what is loaded later marks itself: `gradients.kernels`
