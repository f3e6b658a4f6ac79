"""Asynchronous copies to the host."""

import torch
from torch import Tensor


class Fetched:
    """Copies of tensors to the host: asynchronous from CUDA, none from the CPU."""

    def __init__(self, tensors: list[Tensor]) -> None:
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        self._tensors = [
            tensor.to("cpu", non_blocking=True) if tensor.is_cuda else tensor
            for tensor in tensors
        ]
        self._copied = []
        for device in devices:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            self._copied.append(event)

    def arrived(self) -> bool:
        """Return whether all copies have arrived."""
        return all(event.query() for event in self._copied)  # type: ignore[no-untyped-call]

    def wait(self) -> list[Tensor]:
        """Wait for the copies, and return the tensors on the host."""
        for event in self._copied:
            event.synchronize()
        self._copied = []
        return self._tensors
