"""ampsim.torch.GradScaler."""

from typing import Any

from ampsim import __version__
from ampsim.frameworks.adapters.torch_like import TorchLike


class AmpsimTorch(TorchLike):
    """The drop-in for torch's scaler, with defaults."""

    name = "ampsim-torch"
    requirement = "ampsim==" + __version__
    target = "ampsim.torch.GradScaler"
    source = "ampsim/torch/grad_scaler.py"
    dialect = "torch.amp.GradScaler"

    def make(self, **constants: Any) -> Any:
        from ampsim.torch import GradScaler

        return GradScaler("cpu", **constants)
