"""What several of these files do: fold the machine over a history."""

from collections.abc import Iterable
from typing import Any

from ampsim import State, init, update


def run(rule: Any, history: Iterable[object], state: State | None = None) -> list[State]:
    """The states after each update of a history such as "1001" (1: overflow), or of flags."""
    state = init(rule) if state is None else state
    return [state := update(rule, state, flag not in (False, "0")) for flag in history]


def scales(rule: Any, history: Iterable[object]) -> list[float]:
    """The scale after each of them."""
    return [state.scale for state in run(rule, history)]
