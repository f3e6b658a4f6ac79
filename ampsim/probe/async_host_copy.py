"""Asynchronous copies to the host."""

import torch
from torch import Tensor


class Fetched:
    """A copy of a tensor to the host: asynchronous from CUDA, none from the CPU.

    It uses `torch.cuda` and not `torch.Event`, because only there was it tested. On another device
    the tensor stays, and who reads it waits.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._copied = None
        if tensor.is_cuda:
            self._tensor = tensor.to("cpu", non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(tensor.device))

    def arrived(self) -> bool:
        """Return whether the copy has arrived."""
        return self._copied is None or self._copied.query()  # type: ignore[no-untyped-call]

    def wait(self) -> Tensor:
        """Wait for the copy, and return it."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        return self._tensor
