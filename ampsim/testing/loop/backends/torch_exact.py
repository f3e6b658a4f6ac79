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
        half: the first operation that gave half precision, in words; "" for none.
        tiny: the first that gave numbers below the normal ones of their dtype.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.half = self.tiny = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if "empty" not in func.__name__:  # what nothing has been written to holds any bits
            for tensor in pytree.tree_leaves(result):
                if (
                    isinstance(tensor, Tensor)
                    and tensor.is_floating_point()
                    and tensor.layout == torch.strided
                ):
                    self._look(func.__name__, tensor)
        return result

    def _look(self, name: str, tensor: Tensor) -> None:
        if tensor.dtype in _HALF:
            self.half = self.half or f"{name} gives {str(tensor.dtype).removeprefix('torch.')}"
        elif not self.tiny:
            size = tensor.abs()
            if bool(((size > 0) & (size < torch.finfo(tensor.dtype).tiny)).any()):
                self.tiny = f"{name} gives numbers below the normal ones of {str(tensor.dtype).removeprefix('torch.')}"
