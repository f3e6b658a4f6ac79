"""NeMo's scaler for model parallelism, in groups of one."""

from typing import Any
from unittest.mock import patch

from ampsim.peers.frameworks.here import one_rank
from ampsim.peers.frameworks.torch_like import TORCH_CONSTANTS, TorchLike


class NeMo(TorchLike):
    """Its path without apex's kernel."""

    name = "nemo"
    requirement = "nemo_toolkit==2.7.3"
    environment = "nemo"
    target = "nemo.collections.common.parts.nlp_overrides.GradScaler"
    source = "https://github.com/NVIDIA-NeMo/NeMo/blob/v2.7.3/nemo/collections/common/parts/nlp_overrides.py#L1522"
    dialect = "nemo.GradScaler"
    constants = {**TORCH_CONSTANTS, "hysteresis": "hysteresis"}
    patched = "torch.cuda says that there is a device while the scaler is made, or it would be made disabled"

    def make(self, **constants: Any) -> Any:
        from megatron.core import parallel_state
        from nemo.collections.common.parts.nlp_overrides import GradScaler

        one_rank()
        if not parallel_state.model_parallel_is_initialized():
            parallel_state.initialize_model_parallel()
        with patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False):
            return GradScaler(**constants)
