"""RoundPipe's own scaler and optimizer stream, unmodified, where RoundPipe is installed; with or without a GPU.

``import roundpipe`` fails without a GPU. Then the package's ``__init__`` is passed over, and in the place of
``roundpipe.device``, of which the scaler needs the number of GPUs alone, stands a module that says 0.
"""

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class RoundPipe(NamedTuple):
    scaler: Callable[..., Any]  # its GradScaler
    launch: Callable[..., None]  # runs a function on its optimizer thread
    synchronize: Callable[[], None]  # waits for that thread


def load() -> RoundPipe | None:
    """Return RoundPipe, or None if it is not installed: ``pip install -c constraints.txt --group frameworks``."""
    spec = importlib.util.find_spec("roundpipe")
    if spec is None or spec.submodule_search_locations is None:
        return None
    if not torch.cuda.is_available() and "roundpipe" not in sys.modules:
        package, device = (
            importlib.util.module_from_spec(spec),
            types.ModuleType("roundpipe.device"),
        )
        vars(device)["get_num_devices"] = lambda: 0
        sys.modules.update({"roundpipe": package, "roundpipe.device": device})
    stream = importlib.import_module("roundpipe.optim_stream")
    scaler = importlib.import_module("roundpipe.grad_scaler").GradScaler
    return RoundPipe(scaler, stream.launch_optim_kernel, stream.synchronize_optim)
