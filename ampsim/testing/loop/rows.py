"""The rows of a batch: of all arrays in it, in tuples, lists and mappings, that have as many."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import numpy as np


def is_fraction(array: Any) -> bool:
    """Return whether an array has numbers with a point."""
    return "float" in str(array.dtype)


def with_inf(data: Any) -> Any:
    """Return a batch with an inf as the last number of its first array with a point; None if it has none."""
    if not (fractions := [each for each in _arrays(data) if is_fraction(each)]):
        return None
    added = np.zeros(fractions[0].shape, np.float32)  # as 0 times an inf is none
    added[tuple(-1 for _ in added.shape)] = np.inf
    return mapped(data, lambda each: each + added if each is fractions[0] else each)


def halved(data: Any, count: int) -> list[Any] | None:
    """Return a batch as so many with as many rows each; None if it has no such rows."""
    rows = _rows(data)
    if rows % count or rows < count:
        return None
    size = rows // count
    return [mapped(data, itemgetter(slice(at * size, (at + 1) * size))) for at in range(count)]


def _rows(data: Any) -> int:
    """Return how many rows all arrays of a batch have; 0 where they have no one number."""
    counts = {len(each) for each in _arrays(data)}
    return counts.pop() if len(counts) == 1 else 0


def _arrays(data: Any) -> list[Any]:
    if isinstance(data, Mapping):
        return [each for value in data.values() for each in _arrays(value)]
    if isinstance(data, (list, tuple)):
        return [each for value in data for each in _arrays(value)]
    return [data] if len(getattr(data, "shape", ())) else []


def mapped(data: Any, change: Callable[[Any], Any]) -> Any:
    """Return a batch with each of its arrays changed."""
    if isinstance(data, Mapping):
        return type(data)({key: mapped(value, change) for key, value in data.items()})  # type: ignore[call-arg]
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(mapped(value, change) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(mapped(value, change) for value in data)
    return change(data) if len(getattr(data, "shape", ())) else data
