"""Layer 1: loss scaling in torch.

>>> from ampsim.torch import GradScaler
>>> scaler = GradScaler("cpu", init_scale=1024.0)
>>> scaler.get_scale()
1024.0
"""

from ampsim.core.extras import needing as _needing

with _needing():
    from ampsim.torch import (
        roundpipe,
    )  # imported so that `leave_alone_package` below can exclude it from torch.compile
    from ampsim.torch.dynamo import leave_alone_package as _leave_alone_package
    from ampsim.torch.grad_scaler import GradScaler
    from ampsim.torch.pipelined import Pipelined
    from ampsim.torch.threads.optimizer_thread import OptimizerThread
    from ampsim.torch.threads.register import ClosedError, Ticket

__all__ = ["ClosedError", "GradScaler", "OptimizerThread", "Pipelined", "Ticket", "roundpipe"]

_leave_alone_package("ampsim")
