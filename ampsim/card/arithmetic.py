"""Probe: facts of a device's arithmetic that loss scaling rests on, each beside the CPU's."""

import hashlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from ampsim.records import Record

FP16 = torch.float16
TINY = 2.0**-24  # the smallest subnormal of fp16


def product(left: Sequence[float], right: Sequence[float], device: str) -> float:
    """Return the fp16 matrix product of a row and a column, each filled up with zeros to a tile."""
    a, b = (torch.zeros(64, 64, dtype=FP16, device=device) for _ in "ab")
    a[0, : len(left)] = torch.tensor(left, dtype=FP16, device=device)
    b[: len(right), 0] = torch.tensor(right, dtype=FP16, device=device)
    return float((a @ b)[0, 0])


def overflows_at(device: str) -> float:
    """Return the least sum from which a product is inf; 65520 where it is rounded once, to the nearest."""
    return next((65504.0 + more for more in range(1, 65) if product([65504, more], [1, 1], device) == float("inf")), 0)


def digest(values: Tensor) -> str:
    """Return the first digits of a sha256 of the bits."""
    return hashlib.sha256(values.cpu().numpy().tobytes()).hexdigest()[:16]


FACTS: dict[str, Callable[[str], object]] = {
    "a GEMM overflows at": overflows_at,
    "a GEMM's sum may pass 65504": lambda d: product([65504, 65504, -65504], [1, 1, 1], d),
    "a GEMM keeps a subnormal factor": lambda d: product([TINY], [1024], d) == TINY * 1024,
    "a GEMM keeps a subnormal result": lambda d: product([2.0**-12], [2.0**-12], d) == TINY,
    "a GEMM adds 1 to 2048 1s": lambda d: product([2048, 1, 1], [1, 1, 1], d),
    "fp16 keeps subnormals": lambda d: float(torch.tensor(TINY * 2, dtype=FP16, device=d) / 2) == TINY,
    "float32 keeps subnormals": lambda d: float(torch.tensor(2.0**-140, device=d) / 2) == 2.0**-141,
    "float32 1/S at S = 2^-128": lambda d: float(torch.tensor(2.0**-128, device=d).reciprocal()),
    "a fp16 sum of 4096 1s": lambda d: float(torch.ones(4096, dtype=FP16, device=d).sum()),
    "a fp16 convolution is finite": lambda d: bool(
        conv2d(torch.ones(2, 64, 32, 32, dtype=FP16, device=d), torch.full((64, 64, 3, 3), 0.01, dtype=FP16, device=d))
        .isfinite().all()
    ),
    "0.9^t, t to 1000": lambda d: digest(torch.pow(0.9, torch.arange(1000.0, device=d))),
    "sqrt, 1000 numbers": lambda d: digest(torch.arange(1000.0, device=d).sqrt()),
    "exp, 1000 numbers": lambda d: digest((torch.arange(1000.0, device=d) / 100).exp()),
}  # fmt: skip


def compare(device: str) -> Iterator[Record]:
    """Find every fact on the device and on the CPU, in this order; each takes milliseconds."""
    facts = {name: [looked(see, where) for where in (device, "cpu")] for name, see in FACTS.items()}
    yield {"facts": facts, "differing": [name for name, (here, cpu) in facts.items() if str(here) != str(cpu)]}


def looked(see: Callable[[str], object], device: str) -> object:
    """Return what a device shows; an error is something that it shows."""
    try:
        return see(device)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
