"""Rounds in which every arm has one turn, so that what slows the machine slows all arms alike."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_turn(
    names: Sequence[str], once: Callable[[str], T], rounds: int, warm_up: int = 3
) -> dict[str, list[T]]:
    """Call `once` with every name once per round, in an order that turns from round to round.

    Returns:
        By name, what `once` returned in each round after the warm-up, in which optimizers make
        their state.
    """
    results: dict[str, list[T]] = {name: [] for name in names}
    for index in range(warm_up + rounds):
        first = index % len(names)
        for name in (*names[first:], *names[:first]):
            result = once(name)
            if index >= warm_up:
                results[name].append(result)
    return results
