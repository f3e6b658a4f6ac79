"""Runs of the machine: fold `update` over a history of overflows, and compare two trajectories."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

import numpy as np
import numpy.typing as npt

from ampsim.core.machine import Machine, S, init, update
from ampsim.core.validation import flags


def states(
    rule: Machine[S], found_inf: Iterable[object], *, is_async: Iterable[bool | None] | None = None
) -> Iterator[S]:
    """Yield the state after each update, one by one.

    If the rule's framework gives up (raises) at some update, so does this iterator, after having yielded
    every state before it. Flags written as text raise TypeError.
    """
    state = init(rule)
    modes = repeat(None) if is_async is None else flags("is_async", is_async)
    for flag, delayed in zip(flags("found_inf", found_inf), modes, strict=False):
        state = update(rule, state, flag, synchronous=delayed is False)
        yield state


def replay(
    rule: Machine[S], found_inf: Iterable[object], *, is_async: Sequence[bool | None] | None = None
) -> npt.NDArray[np.float64]:
    """Return the scale after each update of a history.

    Args:
        rule: a `Rule`, or any policy.
        found_inf: one flag per update, taken by its truth.
        is_async: one flag per update: whether it was delayed, for rules with ``delay``; None stands for True.

    Returns:
        float64 array of shape (len(found_inf),); float32 scales are exact in it.

    Raises:
        ValueError: the two histories differ in length; TypeError: flags written as text, "0" being true.
        Exception: whatever the rule's framework raises, with a note that says at which update.
    """
    history = list(flags("found_inf", found_inf))
    if is_async is not None and len(is_async) != len(history):
        raise ValueError(
            f"is_async has {len(is_async)} flags for {len(history)} updates: expected one per update; "
            "leave it out to delay all of them"
        )
    scales: list[float] = []
    try:
        scales.extend(state.scale for state in states(rule, history, is_async=is_async))
    except Exception as error:
        error.add_note(f"raised by update {len(scales)} of {len(history)} (counted from 0)")
        raise
    return np.array(scales, dtype=np.float64)


def first_divergence(a: npt.ArrayLike, b: npt.ArrayLike) -> int | None:
    """Return the index of the first update after which two trajectories differ in any bit; None if they are equal.

    Trajectories of different lengths diverge at the end of the shorter one. NaN equals NaN.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    shorter = min(len(x), len(y))
    different = np.flatnonzero(x[:shorter].view(np.int64) != y[:shorter].view(np.int64))
    different = different[~(np.isnan(x[different]) & np.isnan(y[different]))]
    if len(different):
        return int(different[0])
    return shorter if len(x) != len(y) else None
