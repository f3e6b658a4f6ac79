"""Replay of overflow sequences."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Literal

import numpy as np
import numpy.typing as npt

from ampsim.core.machine import Machine, S, init
from ampsim.core.validation import check_choice, flags


def states(
    rule: Machine[S],
    found_inf: Iterable[object],
    *,
    is_async: Iterable[bool | None] | None = None,
) -> Iterator[S]:
    """Yield the state after each update.

    If the rule's framework raises at an update, the iterator raises there too. Flags given as text
    raise TypeError.
    """
    state = init(rule)
    modes = repeat(None) if is_async is None else flags("is_async", is_async)
    for flag, delayed in zip(flags("found_inf", found_inf), modes, strict=False):
        state = rule.update(state, flag, synchronous=delayed is False)
        yield state


def replay(
    rule: Machine[S],
    found_inf: Iterable[object],
    *,
    is_async: Sequence[bool | None] | None = None,
    when: Literal["before", "after"] = "after",
) -> npt.NDArray[np.float64]:
    """Return the scale after, or before, each update of an overflow sequence.

    >>> from ampsim import Rule, replay
    >>> replay(Rule(init_scale=1024.0, growth_interval=2), [False, False, True]).tolist()
    [1024.0, 2048.0, 1024.0]

    Args:
        rule: A `Rule` or a policy.
        found_inf: One flag per update, used by its truth value.
        is_async: One flag per update: whether it was delayed, for rules with ``delay``. None means
            True.
        when: ``"after"`` for the scale after each update, ``"before"`` for the scale that each step
            used. A log that prints the scale of a step before the update has the scales before.

    Returns:
        Array of shape ``(len(found_inf),)`` and dtype float64; float32 scales are exact in it.

    Raises:
        TypeError: If flags are text, as "0" is true.
        ValueError: If the two sequences differ in length, or `when` is neither.
        Exception: What the rule's framework raises, with a note that names the update.
    """
    check_choice("when", when, ("before", "after"))
    history = list(flags("found_inf", found_inf))
    if is_async is not None and len(is_async) != len(history):
        raise ValueError(
            f"is_async has {len(is_async)} flags for {len(history)} updates: expected one per update; "
            "omit it to delay all of them"
        )
    scales: list[float] = []
    try:
        scales.extend(state.scale for state in states(rule, history, is_async=is_async))
    except Exception as error:
        error.add_note(
            f"raised by update {len(scales)} of {len(history)} (counted from 0)"
        )
        raise
    if when == "before":
        scales = [init(rule).scale, *scales][: len(history)]
    return np.array(scales, dtype=np.float64)
