"""The header of a run's file."""

import platform
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.core.machine import SETTABLE


def optimizers_of(given: Any) -> list[Optimizer]:
    """Return the optimizers, without the wrappers of accelerate and Lightning.

    Raises:
        TypeError: If an object is no optimizer.
        ValueError: If there is no optimizer.
    """
    several = list(given) if isinstance(given, Iterable) else [given]
    plain = [
        each if _has_hooks(each) else getattr(each, "optimizer", each)
        for each in several
    ]
    for each in plain:
        if not hasattr(each, "param_groups"):
            raise TypeError(
                f"{each!r}: expected an optimizer with param_groups; pass the argument of scaler.step"
            )
    if not plain:
        raise ValueError(
            "no optimizer: expected at least one; pass the argument of scaler.step"
        )
    return plain


def _has_hooks(optimizer: Any) -> bool:
    """Return whether this is an optimizer, not a subclass that skips ``Optimizer.__init__``."""
    return isinstance(optimizer, Optimizer) and "_optimizer_step_pre_hooks" in vars(
        optimizer
    )


def scaler_of(optimizer: Any, scaler: Any) -> Any:
    """Return the scaler to watch: the given one, or that of accelerate's optimizers."""
    if scaler is not None:
        return scaler
    several = optimizer if isinstance(optimizer, Iterable) else [optimizer]
    # Both attributes are there in accelerate.optimizer.AcceleratedOptimizer only.
    scalers = [
        wrapper.scaler
        for wrapper in several
        if hasattr(wrapper, "optimizer") and hasattr(wrapper, "scaler")
    ]
    return scalers[0] if scalers else None


def header_of(
    optimizers: list[Optimizer], scaler: Any, named: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return the header of a run's file."""
    settings: dict[str, Any] = {"scaler": None}
    if scaler is not None:
        settings["scaler"] = f"{type(scaler).__module__}.{type(scaler).__qualname__}"
        for name in SETTABLE:
            getter = getattr(scaler, f"get_{name}", None)
            if getter is not None and scaler.is_enabled():
                settings[name] = getter()
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": sys.argv,
        **settings,
        "optimizers": [type(each).__name__ for each in optimizers],
        "parameters": {name: param.numel() for name, param in named.items()},
        "dtypes": sorted(
            {str(param.dtype).removeprefix("torch.") for param in named.values()}
        ),
        "devices": sorted({str(param.device) for param in named.values()}),
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        },
    }
