"""Search for modules that must stay in float32 for a batch to be finite, over the module tree.

The whole model must be finite in float32. From the root down, the search replaces a module by a
sufficient subset of its children: it leaves out one child after the other. If the children do not
suffice, because the overflow is in the module's own forward, the module stays.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ampsim.probe.undoable_backward import Loss, is_finite

Names = frozenset[str]
Finite = Callable[[Names], bool]


def find_fp32_modules(model: nn.Module, loss: Loss, *, scale: float = 1.0) -> list[str]:
    """Find modules that must run in float32 to keep a batch finite.

    The set is minimal: without any one of the modules, the loss or a gradient is not finite. Each
    trial runs a forward and a backward pass. Parameters, ``.grad``, buffers, and RNG state are
    restored.

    >>> class Square(nn.Module):
    ...     def forward(self, x):
    ...         return x @ x.mT
    >>> model = nn.Sequential(nn.Linear(4, 4), Square(), nn.Linear(2, 1))
    >>> batch = torch.full((2, 4), 3e4)
    >>> def loss():
    ...     with torch.autocast("cpu", torch.float16):
    ...         return model(batch).float().mean() / 1e8
    >>> with torch.no_grad(): _ = model[0].weight.copy_(torch.eye(4)), model[2].weight.zero_()
    >>> find_fp32_modules(model, loss)
    ['1', '2']

    Args:
        model: Model with float32 parameters.
        loss: Callable that returns the scalar loss of one batch, under the autocast used for
            training.
        scale: Loss scale, a positive factor; gradients that overflow at this scale count as not
            finite.

    Returns:
        list[str]: Names of modules as in ``model.named_modules()``; "" is the model's own forward.
        Empty if the loss and the gradients are finite without changes.

    Raises:
        ValueError: If the loss or a gradient is not finite in float32 either.
    """
    modules = dict(model.named_modules())

    def finite(names: Names) -> bool:
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(_in_float32(modules[name]))
            return is_finite(model, loss, scale)

    if finite(frozenset()):
        return []
    if not finite(frozenset([""])):
        raise ValueError(
            "the loss or a gradient is not finite with the whole model in float32: expected a batch that is finite "
            "in float32; check the batch and the parameters for inf or NaN, or lower scale="
        )
    found = _narrowed("", frozenset(), modules, finite)
    return [name for name in modules if name in found]


def _narrowed(
    name: str, others: Names, modules: dict[str, nn.Module], finite: Finite
) -> Names:
    """Return modules that may replace a module, given that it and `others` suffice."""
    prefix = f"{name}." if name else ""
    children = [
        prefix + child
        for child, _ in modules[name].named_children()
        if prefix + child in modules
    ]
    if not children or not finite(others | frozenset(children)):
        return frozenset([name])
    needed = frozenset(children)
    for child in children:
        if finite(others | needed - {child}):
            needed -= {child}
    for child in children:
        if child in needed:
            found = _narrowed(child, others | needed - {child}, modules, finite)
            needed = needed - {child} | found
    return needed


@contextmanager
def _in_float32(module: nn.Module) -> Iterator[None]:
    """Run a module's forward without autocast, on its inputs in float32."""
    own = "forward" in vars(module)
    forward = module.forward

    def wide(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map(_widened, (args, kwargs))
        kinds = {
            tensor.device.type
            for tensor in pytree.tree_leaves((args, kwargs))
            if isinstance(tensor, Tensor)
        }
        with ExitStack() as stack:
            for kind in kinds | {"cpu"}:
                stack.enter_context(torch.autocast(kind, enabled=False))
            return forward(*args, **kwargs)

    module.forward = wide
    try:
        yield
    finally:
        if own:
            module.forward = forward
        else:
            del module.forward


def _widened(value: Any) -> Any:
    half = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value
