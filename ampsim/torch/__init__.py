"""Loss scaling in torch.

>>> from ampsim.torch import GradScaler
>>> scaler = GradScaler("cpu", init_scale=1024.0)
>>> scaler.get_scale()
1024.0
"""

from ampsim.core.extras import needing as _needing

with _needing():
    # Imported so that `leave_alone_package` below finds its functions.
    from ampsim.torch import roundpipe
    from ampsim.torch.async_scaler import AsyncGradScaler
    from ampsim.torch.async_state import ClosedError, Ticket
    from ampsim.torch.dynamo import leave_alone_package as _leave_alone_package
    from ampsim.torch.grad_scaler import GradScaler
    from ampsim.torch.optimizer_thread import OptimizerThread

__all__ = [
    "AsyncGradScaler",
    "ClosedError",
    "GradScaler",
    "OptimizerThread",
    "Ticket",
    "roundpipe",
]

_leave_alone_package("ampsim")
