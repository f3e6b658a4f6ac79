"""ampsim.torch.GradScaler."""

from typing import Any

from ampsim.frameworks.adapters.torch_like import TorchLike


class AmpsimTorch(TorchLike):
    """The drop-in for torch's scaler, with defaults."""

    name = "ampsim-torch"
    requirement = "ampsim==0.1.0.dev0"
    target = "ampsim.torch.GradScaler"
    source = "https://pypi.org/project/ampsim/"
    dialect = "torch.amp.GradScaler"

    def make(self, **constants: Any) -> Any:
        from ampsim.torch import GradScaler

        return GradScaler("cpu", **constants)
