"""Products of matrices in half precision on a CPU: torch's numbers to the last bit, in a fifth of its time.

Under `experiments.KERNELS` torch multiplies two numbers of 16 bits in float32, which holds their product exactly, adds
in float32, and rounds the sum once. The order of its additions follows from which operand is transposed. The same
additions are made here, of many elements at a time.
"""

import functools
import os
import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments import KERNELS

LANES = 4  # sums over every fourth product, added at the end: torch's order where neither operand is transposed
WORTH = 1 << 12  # multiplications below which torch is done before this has begun


@functools.cache
def install() -> Any:
    """Replace torch's product of two matrices in this process, for good; nothing without the common kernels or numba.

    Returns:
        What holds the replacement as long as it lives, which is as long as the process.
    """
    if not os.environ.items() >= KERNELS.items() or find_spec("numba") is None:
        return None
    from numba import njit  # half a second that no one else pays

    torches = torch.library.get_kernel("aten::mm", "CPU")
    compiled = njit("void(float32[:, :], float32[:, ::1], float32[:, :, ::1])", cache=True)(add)

    def product(keys: torch.DispatchKeySet, a: Tensor, b: Tensor) -> Tensor:
        lanes = lanes_of(a, b)
        if not lanes:
            out: Tensor = torches.call_boxed(keys, a, b)
            return out
        sums = np.zeros((lanes, a.shape[0], b.shape[1]), np.float32)
        compiled(a.float().numpy(), b.float().numpy(), sums)
        return torch.from_numpy(sums[0]).to(a.dtype)

    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")  # torch says that it is replaced
        library.impl("mm", product, "CPU", with_keyset=True, allow_override=True)
    return library


def lanes_of(a: Tensor, b: Tensor) -> int:
    """Return in how many sums torch adds up an element of (m, k) times (k, n); 0 where it is left to torch."""
    (m, k), n = a.shape, b.shape[1]
    if a.dtype not in (torch.float16, torch.bfloat16) or min(m, k, n) < 2 or m * k * n < WORTH or not b.is_contiguous():
        return 0
    return LANES if a.is_contiguous() else 1 if a.t().is_contiguous() else 0


def add(a: NDArray[np.float32], b: NDArray[np.float32], sums: NDArray[np.float32]) -> None:
    """Add (m, k) times (k, n) to (lanes, m, n), which is 0; the first lane ends with the sum of all. For numba."""
    lanes, m, n = sums.shape
    k = a.shape[1]
    whole = k - k % (4 * lanes)
    for i in range(m):
        for lane in range(lanes):
            row = sums[lane, i]
            for start in range(lane, whole, 4 * lanes):  # four at a time, so that a sum stays in its register
                x0, x1, x2, x3 = a[i, start], a[i, start + lanes], a[i, start + 2 * lanes], a[i, start + 3 * lanes]
                b0, b1, b2, b3 = b[start], b[start + lanes], b[start + 2 * lanes], b[start + 3 * lanes]
                for j in range(n):
                    row[j] = (((row[j] + x0 * b0[j]) + x1 * b1[j]) + x2 * b2[j]) + x3 * b3[j]
        for place in range(whole, k):
            row = sums[place % lanes if place < k - k % lanes else 0, i]
            for j in range(n):
                row[j] += a[i, place] * b[place, j]
        for lane in range(1, lanes):
            for j in range(n):
                sums[0, i, j] += sums[lane, i, j]
