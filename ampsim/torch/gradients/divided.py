"""A gradient is divided by the loss scale once in an iteration.

Two optimizers may share a parameter, and each would divide its gradient. So a divided gradient has
a tag, an attribute, which a new gradient has not. Its parts are an int that is unique to an
iteration, the gradient's version, and for a fused step the flag with which it would have skipped.
"""

import itertools
import operator
import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ampsim.torch.gradients import collect, unscale
from ampsim.torch.gradients.collect import Groups
from ampsim.torch.gradients.unscale import FoundInf

_VERSION = operator.attrgetter("_version")
_keys = itertools.count(1)


def new_key() -> int:
    """Return an int that no other iteration of this process has."""
    return next(_keys)


def divide_(
    optimizer: Optimizer,
    groups: Groups,
    inverse: Tensor,
    *,
    rest: list[Tensor] | None,
    below_one: bool,
) -> FoundInf:
    """Divide an optimizer's gradients, but those that another optimizer has divided; check all.

    Args:
        optimizer: Optimizer whose gradients to divide.
        groups: Its gradients.
        inverse: Reciprocal of the loss scale, shape (), float32, on any device.
        rest: Result of `undivided`.
        below_one: Whether the scale may be below 1, so that a division may overflow.

    Returns:
        The flags of gradients that are not finite.
    """
    found = FoundInf()
    left = groups
    if rest is not None:
        unscale.check(groups, found)
        left = collect.group(rest, allow_fp16=True)
    unscale.multiply_and_check_(left, inverse, found, below_one=below_one)
    if groups.plain is None:
        _check_sums(collect.gradients(optimizer), found)
    return found


def _check_sums(grads: list[Tensor], found: FoundInf) -> None:
    """Check the sums of duplicates in sparse gradients, which the optimizer will add."""
    for grad in grads:
        if grad.is_sparse and not grad.is_coalesced():
            sums = grad.coalesce().values()
            unscale.check(Groups({(sums.device, sums.dtype): [sums]}), found)


def mark(
    optimizer: Optimizer,
    key: int,
    *,
    found_inf: Tensor | None = None,
    plain: list[Tensor] | None = None,
) -> None:
    """Tag an optimizer's gradients as divided.

    Args:
        optimizer: Optimizer whose gradients to tag.
        key: Key of the iteration, from `new_key`.
        found_inf: Flag of a fused step, shape (): the kernel divided only if it is 0.
        plain: `Groups.plain` of the gradients, to save a second look for them.
    """
    grads: list[Any] = collect.gradients(optimizer) if plain is None else plain
    try:
        versions = {*map(_VERSION, grads)}
    except RuntimeError:  # inference tensors do not count their versions
        versions = set()
    if len(versions) == 1:
        # The usual case; a tag for each gradient would take twice as long.
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
    params = collect.parameters(optimizer)
    rest = [p for p in params if not _is_divided(getattr(p, "grad", None), key)]
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
