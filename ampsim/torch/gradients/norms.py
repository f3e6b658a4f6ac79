"""Sums of squares of gradients on the CPU, in one read.

A sum of squares is enough for the norm and the non-finite check: if it is finite, so is every
element.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

# Elements up to which a copy into one buffer is cheaper than a call of its own.
SMALL = 1 << 14
# Small gradients per buffer: a few hundred kB, which are read again while they are in the cache.
BATCH = 64
# Elements per partial sum in float32: a longer one would lose digits.
PART = 1 << 19


def on_host(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether BLAS can compute the sums, and no device is waited for."""
    return device.type == "cpu" and (dtype is torch.float32 or dtype is torch.float64)


def sum_of_squares(grads: list[Tensor]) -> float:
    """Sum the squares of CPU gradients of one dtype; inf or NaN if a part overflows."""
    if max(map(Tensor.numel, grads), default=0) <= SMALL:
        return _of_small(grads)
    small = [grad for grad in grads if grad.numel() <= SMALL]
    large = [grad for grad in grads if grad.numel() > SMALL]
    return _of_large(large) + _of_small(small)


def _of_large(grads: list[Tensor]) -> float:
    # In the order of the parameters: a backward pass wrote the first ones last, so they are in the
    # cache. All views are made before the first read: reading evicts the interpreter from the
    # cache.
    parts = [part for grad in grads for part in _parts(grad)]
    with np.errstate(all="ignore"):  # inf and NaN are what is looked for
        return sum(map(float, map(np.dot, parts, parts)))


def _of_small(grads: list[Tensor]) -> float:
    join = torch.cat if {*map(Tensor.dim, grads)} == {1} else _flatten_dense_tensors
    total = 0.0
    for start in range(0, len(grads), BATCH):
        buffer = join(grads[start : start + BATCH])
        total += torch.dot(buffer, buffer).item()
    return total


def _parts(grad: Tensor) -> list[Any]:
    """Cut a gradient into numpy vectors, which BLAS reads faster than ``vector_norm`` does."""
    try:
        flat = grad.numpy().ravel(order="K")  # a view, in the order of the memory
    except (RuntimeError, TypeError):  # it has a graph of its own, or is a subclass
        return [np.array([torch.linalg.vector_norm(grad).item()])]
    return [flat[start : start + PART] for start in range(0, flat.size, PART)]
