"""Whether multiplying by a power of two was exact in a run: no half precision, no number below the normal ones."""

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_HALF = (torch.float16, torch.bfloat16)


class Inexact(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches every operation, forward and backward, for what makes scaling by a power of two inexact.

    Attributes:
        found: the first operation that was inexact, in words; "" for none.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: str = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.found:
            for tensor in pytree.tree_leaves(result):
                if isinstance(tensor, Tensor) and (why := _why(tensor)):
                    self.found = f"{func.__name__} gave {why}"
        return result


def _why(tensor: Tensor) -> str:
    if tensor.dtype in _HALF:
        return str(tensor.dtype).removeprefix("torch.")
    if not tensor.is_floating_point() or tensor.layout != torch.strided:
        return ""
    size = tensor.abs()
    if bool(((size > 0) & (size < torch.finfo(tensor.dtype).tiny)).any()):
        return "numbers below the normal ones of its dtype"
    return ""
