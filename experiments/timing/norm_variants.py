"""What was tried for reading all gradients once: ways to a 2-norm, or to less, each over a list of CPU tensors."""

import statistics
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ampsim.torch.gradients.norms import sum_of_squares
from experiments.timing.clocks import timed

SLOW = 10  # a way that takes ten times as long as another is timed a tenth as often


def each(one: Callable[[Tensor], object]) -> Callable[[list[Tensor]], object]:
    """Return a way that calls `one` for every tensor."""
    return lambda grads: [one(g) for g in grads]


def rows(size: int) -> Callable[[Tensor], object]:
    """Return a way that sums `size` elements at a time by numpy's BLAS."""

    def square(g: Tensor) -> float:
        flat = g.numpy()
        whole = flat.size - flat.size % size
        parts = flat[:whole].reshape(-1, size)
        return float(np.vecdot(parts, parts).sum(dtype=np.float64) + np.dot(flat[whole:], flat[whole:]))

    return square


def kernel(grads: list[Tensor]) -> None:
    """Check and unscale as torch does, which reads and writes."""
    torch._amp_foreach_non_finite_check_and_unscale_(grads, torch.zeros(()), torch.ones(()))


def numpy_dot(g: Tensor) -> object:
    return np.dot(g.numpy(), g.numpy())


def ready_then_dot(grads: list[Tensor]) -> float:
    """Convert all first: between two reads of a large tensor any Python is slow, as its code was evicted."""
    parts = [g.numpy() for g in reversed(grads)]
    return sum(map(float, map(np.dot, parts, parts)))


WAYS: dict[str, Callable[[list[Tensor]], object]] = {
    "as it is": sum_of_squares,
    "vector_norm each": each(torch.linalg.vector_norm),
    "vector_norm each, last first": lambda grads: [torch.linalg.vector_norm(g) for g in reversed(grads)],
    "foreach_norm": lambda grads: torch._foreach_norm(grads),  # noqa: SLF001
    "torch.dot each (MKL)": each(lambda g: torch.dot(g, g)),
    "torch.dot of 65536 each": each(lambda g: [torch.dot(part, part) for part in torch.split(g, 65536)]),
    "numpy.dot each (OpenBLAS)": each(numpy_dot),
    "numpy.vecdot in rows of 2048": each(rows(2048)),
    "numpy.vecdot in rows of 8192": each(rows(8192)),
    "numpy.vecdot in rows of 32768": each(rows(32768)),
    "cat, then vector_norm": lambda grads: torch.linalg.vector_norm(torch.cat(grads)),
    "cat 64, then numpy.dot": lambda grads: [numpy_dot(torch.cat(grads[i : i + 64])) for i in range(0, len(grads), 64)],
    "a list of parts, then numpy.dot": ready_then_dot,
    "vector_norm in float64": each(lambda g: torch.linalg.vector_norm(g, dtype=torch.float64)),
    "max |g| by the inf-norm": each(lambda g: torch.linalg.vector_norm(g, float("inf"))),
    "max |g| by aminmax": each(torch.aminmax),
    "torch.sum: a read and no norm": each(torch.sum),
    "torch's check and unscale": kernel,
    "multiply each in place": each(lambda g: g.mul_(1.0)),
    "multiply each in place, then numpy.dot": each(lambda g: numpy_dot(g.mul_(1.0))),
}


@torch.no_grad()
def tried(shapes: list[tuple[int, ...]], rounds: int) -> dict[str, float]:
    """Return the median microseconds of each way on the CPU, interleaved."""
    grads = [1e-3 * torch.randn(shape) for shape in shapes]
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    fastest = _seconds("as it is", grads)
    for index in range(rounds):
        for name in WAYS:
            last = times[name][-1] if times[name] else 0.0
            if last < SLOW * fastest or index % SLOW == 0:
                times[name].append(_seconds(name, grads))
    return {name: round(1e6 * statistics.median(seconds), 1) for name, seconds in times.items()}


def _seconds(name: str, grads: list[Tensor]) -> float:
    return timed(lambda: WAYS[name](grads), "cpu").device
