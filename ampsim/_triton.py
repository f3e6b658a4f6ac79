"""Triton, where it is installed: what the kernels of `ampsim.torch` and `ampsim.probe` share."""

# mypy: disable-error-code="untyped-decorator"

import functools
import os
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    from triton import language as tl
except ImportError:  # CUDA builds of torch bring it; elsewhere torch's own kernels do
    triton, tl = None, SimpleNamespace(constexpr=int)

__all__ = ["INTERPRETED", "NewAddressesError", "is_dense", "jit", "runs", "tl"]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton reads it when a kernel is defined

jit: Callable[..., Any] = triton.jit if triton else lambda **_: lambda function: function


class NewAddressesError(RuntimeError):
    """A kernel cannot be tried, nor told of other tensors, while a CUDA graph is captured."""


@functools.cache
def runs(kernel: Callable[[list[Tensor]], object], device: torch.device) -> bool:
    """Tell whether a kernel runs on `device`: on CUDA with Triton, tried once and remembered.

    Triton also needs a C compiler, and knows not every GPU: a RuntimeWarning says why it failed. NewAddressesError if
    it was not tried before a capture: nothing is remembered then.
    """
    if device.type != "cuda" or triton is None or os.environ.get("AMPSIM_TRITON") == "0":
        return False
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise NewAddressesError(
            f"Triton first tried on {device} in the capture of a CUDA graph: expected a call before it"
        )
    try:
        kernel([torch.ones(1, device=device)])
    except Exception as error:  # whatever a compiler may raise
        text = f"Triton on {device}: {error}: torch's own kernels do its work; to choose them set AMPSIM_TRITON=0"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
        return False
    return True


def is_dense(tensor: Tensor) -> bool:
    """Tell whether the elements fill their memory without gaps or overlaps, in whatever order."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
