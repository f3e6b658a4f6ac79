"""Fused optimizers, whose step divides by ``grad_scale`` and skips on ``found_inf``."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)


def is_fused(optimizer: Any) -> bool:
    """Return whether an optimizer's step divides and skips by itself."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


def divides_by_grad_scale(optimizer: Any) -> bool:
    """Return whether a step divides by ``grad_scale``.

    A step with a parameter ``grad_scaler`` gets the scaler itself from torch, and no attributes.
    """
    return is_fused(optimizer) and not _takes_scaler(_function(optimizer.step))


def _function(method: Any) -> Any:
    # A bound method would keep its optimizer.
    return getattr(method, "__func__", method)


@functools.lru_cache(maxsize=64)
def _takes_scaler(step: Callable[..., object]) -> bool:
    return "grad_scaler" in inspect.signature(step).parameters


class Attributes(NamedTuple):
    """What a fused optimizer's step reads; None if an attribute is not set."""

    grad_scale: Tensor | None
    found_inf: Tensor | None


def attributes_of(optimizer: Any) -> Attributes:
    """Return an optimizer's ``grad_scale`` and ``found_inf``."""
    attributes = vars(optimizer)
    return Attributes(attributes.get("grad_scale"), attributes.get("found_inf"))


def restore_attributes(optimizer: Any, saved: Attributes) -> None:
    """Set an optimizer's ``grad_scale`` and ``found_inf`` to what `attributes_of` returned."""
    for name, value in saved._asdict().items():
        vars(optimizer).pop(name, None)
        if value is not None:
            setattr(optimizer, name, value)


def step(
    optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: Attributes
) -> Any:
    """Call a fused step with its attributes; remove them, or restore them if the step raises.

    torch's own optimizers take no flag for a flag of 0, and then do not subtract it from the step
    count of every parameter. On the CPU the flag is known.
    """
    before = attributes_of(optimizer)
    flag = given.found_inf
    if (
        flag is not None
        and flag.is_cpu
        and not flag
        and _is_read_by_torch_alone(optimizer)
    ):
        flag = None
    optimizer.grad_scale = given.grad_scale
    optimizer.found_inf = flag
    try:
        result = optimizer.step(*args, **kwargs)
    except BaseException:
        restore_attributes(optimizer, before)
        raise
    del optimizer.grad_scale, optimizer.found_inf
    return result


def _is_read_by_torch_alone(optimizer: Any) -> bool:
    """Return whether torch's step is the only reader of the flag: no client's hook or step is."""
    if not type(optimizer).__module__.startswith("torch.optim."):
        return False
    patched = vars(optimizer).get("step")
    if patched is not None and not hasattr(patched, "_wrapped_by_lr_sched"):
        return False
    hooks = (
        optimizer._optimizer_step_pre_hooks,  # noqa: SLF001
        optimizer._optimizer_step_post_hooks,  # noqa: SLF001
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    )
    return not any(hooks)


def count_states(optimizer: Any) -> int:
    """Return for how many parameters an optimizer has state; 0 if it has no dict of states."""
    states = getattr(optimizer, "state", None)
    return len(states) if isinstance(states, dict) else 0


def drop_states(optimizer: Any, kept: int) -> None:
    """Drop all but the first `kept` states, which a skipped step has just allocated.

    torch's fused SGD allocates a momentum and its kernel leaves it as it is. The next step would
    use the content of that memory as the momentum.
    """
    for param in [*optimizer.state][kept:]:
        del optimizer.state[param]
