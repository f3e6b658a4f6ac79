"""The data that frameworks without torch are tried on: float32, seeded, and small enough to be exact."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Batch = tuple[Any, Any]  # arrays, (rows, 3) and (rows, 1), float32


def batches(count: int = 4, rows: int = 8) -> list[Batch]:
    """Return pairs of data and target, drawn from a generator of their own."""
    draw = np.random.default_rng(7)
    return [
        (draw.normal(size=(rows, 3)).astype(np.float32), draw.normal(size=(rows, 1)).astype(np.float32))
        for _ in range(count)
    ]


def square_error(predicted: Any, target: Any) -> Any:
    """Return the mean square error of arrays of any framework, ()."""
    return ((predicted - target) ** 2).mean()


def cut(batch: Batch, count: int) -> list[Batch]:
    """Return a batch as micro-batches, in a list; `parts` takes either."""
    data, target = (np.split(np.asarray(array), count) for array in batch)
    return [*zip(data, target, strict=True)]


def parts(batch: Batch | list[Batch]) -> Sequence[Batch]:
    """Return what the step is to be made of: the micro-batches, or the batch as the only one."""
    return batch if isinstance(batch, list) else [batch]
