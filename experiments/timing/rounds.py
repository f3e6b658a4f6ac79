"""Rounds in which every arm has one turn, so that what slows the machine for a while slows all of them alike."""

import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
WARM_UP = 3  # rounds that do not count: optimizers make their state


def in_turn(
    names: Sequence[str],
    once: Callable[[str], T],
    rounds: int,
    tick: Callable[[int], None],
    warm_up: int = WARM_UP,
) -> dict[str, list[T]]:
    """Call `once` with every name once per round, in an order that turns from round to round.

    Returns:
        By name, what `once` returned in each round after the warm-up.
    """
    found: dict[str, list[T]] = {name: [] for name in names}
    for index in range(warm_up + rounds if names else 0):
        first = index % len(names)
        for name in (*names[first:], *names[:first]):
            result = once(name)
            if index >= warm_up:
                found[name].append(result)
        tick(max(0, index + 1 - warm_up))
    return found


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median of the trials with the lowest and the highest, as text; empty where there are none."""
    if not values:
        return ""
    middle, low, high = (
        f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    )
    return f"{middle} ({low} to {high})"
