"""Tags of divided gradients: a gradient is divided by the loss scale once.

Two optimizers may share a parameter, and each would divide its gradient. The tag is an attribute
of the gradient, so that a new gradient has none. Its parts are an int that is unique to an
iteration, the gradient's version, and for a fused step the flag with which it would have skipped.
"""

import itertools
import operator
import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

_VERSION = operator.attrgetter("_version")
_keys = itertools.count(1)


def new_key() -> int:
    """Return an int that no other iteration of this process has."""
    return next(_keys)


def mark(optimizer: Optimizer, key: int, found_inf: Tensor | None = None) -> None:
    """Tag an optimizer's gradients as divided.

    Args:
        optimizer: Optimizer whose gradients to tag.
        key: Key of the iteration, from `new_key`.
        found_inf: Flag of a fused step, shape (): the kernel divided only if it is 0.
    """
    mark_gradients(_gradients(optimizer), key, found_inf)


def _gradients(optimizer: Optimizer) -> list[Tensor]:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return [grad for param in params if (grad := param.grad) is not None]


def shares_gradients(one: Optimizer, other: Optimizer) -> bool:
    """Return whether two optimizers have a gradient in common."""
    return not {*map(id, _gradients(one))}.isdisjoint(map(id, _gradients(other)))


def mark_gradients(grads: list[Any], key: int, found_inf: Tensor | None = None) -> None:
    """Do `mark` for a list of gradients."""
    try:
        versions = {*map(_VERSION, grads)}
    except RuntimeError:  # inference tensors do not count their versions
        versions = set()
    if (
        len(versions) == 1
    ):  # the usual case; a tag for each gradient would take twice as long
        tag = (key, versions.pop(), found_inf)
        for grad in grads:
            grad._ampsim_divided = tag  # noqa: SLF001
    else:
        for grad in grads:
            grad._ampsim_divided = (key, _version(grad), found_inf)  # noqa: SLF001


def undivided(optimizer: Optimizer, key: int) -> list[Tensor] | None:
    """List the parameters whose gradients this iteration has not divided.

    Waits for the device only if a fused step had one of the gradients.

    Args:
        optimizer: Optimizer whose gradients are to be divided.
        key: Key of the iteration, from `new_key`.

    Returns:
        The parameters, or None if no gradient of the optimizer is divided.

    Raises:
        RuntimeError: If a gradient was divided and written since.
    """
    params: list[Any] = [
        param for group in optimizer.param_groups for param in group["params"]
    ]
    rest = [
        param for param in params if not _is_divided(getattr(param, "grad", None), key)
    ]
    return None if len(rest) == len(params) else rest


def _is_divided(grad: Tensor | None, key: int) -> bool:
    """Return whether a gradient is divided; raise RuntimeError if that is unknown."""
    tag = getattr(grad, "_ampsim_divided", None)
    if grad is None or tag is None or tag[0] != key:
        return False
    _, version, found_inf = tag
    if version != _version(grad):
        raise RuntimeError(
            "a gradient was divided by the loss scale for another optimizer, and then written: "
            "expected it unchanged or new, because a second division may be wrong; unscale both "
            "optimizers before you clip, or zero_grad(set_to_none=True) before the next backward()"
        )
    return found_inf is None or not found_inf.item()


def _version(grad: Tensor) -> int:
    """Return how often a gradient was written; inference tensors do not count that."""
    return -1 if grad.is_inference() else grad._version  # noqa: SLF001


def reference(optimizer: Optimizer) -> Callable[[], object]:
    """Return a weak reference; a client's wrapper that takes none is kept alive."""
    try:
        return weakref.ref(optimizer)
    except TypeError:
        return lambda: optimizer
