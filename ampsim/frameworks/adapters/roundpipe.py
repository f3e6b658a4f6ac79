"""RoundPipe's scaler, whose unscaling, step and update run on a thread of RoundPipe's own."""

import importlib.util
import sys
import types
from typing import Any

from ampsim.frameworks.adapters.torch_like import TorchLike


class RoundPipe(TorchLike):
    """The asynchronous scaler: the loss is scaled one update behind."""

    name = "roundpipe"
    requirement = "roundpipe==0.1.1"
    target = "roundpipe.grad_scaler.GradScaler"
    source = "https://github.com/ITcarrot/RoundPipe/blob/e813c67/roundpipe/grad_scaler.py#L14"
    dialect = "roundpipe.GradScaler[async]"
    deviations = dict.fromkeys(
        (
            "overflow_backs_off_once",
            "finite_step_never_lowers_scale",
            "growth_waits_for_interval",
        ),
        "asynchronous: an update's scale is in force one update later, "
        "https://github.com/ITcarrot/RoundPipe/blob/e813c67/roundpipe/grad_scaler.py#L164",
    )
    patched = "without a GPU: its __init__ is passed over, and roundpipe.device, asked for a number of GPUs, says 0"

    def make(self, **constants: Any) -> Any:
        if "roundpipe" not in sys.modules:
            found = importlib.util.find_spec("roundpipe")
            if found is None:
                raise ModuleNotFoundError(
                    "No module named 'roundpipe'", name="roundpipe"
                )
            sys.modules["roundpipe"] = importlib.util.module_from_spec(found)
            device = types.ModuleType("roundpipe.device")
            vars(device)["get_num_devices"] = lambda: 0
            sys.modules["roundpipe.device"] = device
        from roundpipe.grad_scaler import GradScaler

        return GradScaler(**constants)

    def iterate(self) -> None:
        from roundpipe.optim_stream import launch_optim_kernel, synchronize_optim

        launch_optim_kernel(self.scaler.step, self.optimized.optimizer)
        self.scaler.update()
        synchronize_optim()

    def state_dict(self) -> object:
        raise NotImplementedError("roundpipe's scaler has no state_dict")

    def load_state_dict(self, state: object) -> None:
        raise NotImplementedError("roundpipe's scaler has no load_state_dict")
