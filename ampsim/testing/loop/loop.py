"""The loop under test, and its errors before any check runs."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampsim.testing.lines import is_users


class LoopError(Exception):
    """The loop cannot be checked: wrong usage, or an exception in the loop. No check failed."""


@dataclass(frozen=True)
class Loop:
    """A training loop to check, fresh and seeded, as ``make(scaler)`` returns it.

    A JAX loop holds the scaler in `state`, and its functions take and return the state.
    ``step(state, batch)`` returns the new state, or the new state and the logged values.
    ``save(state)`` returns a checkpoint, and ``load(checkpoint)`` returns a state. The parameters
    of a JAX loop are the values of ``params`` or ``model``.

    Without ``split``, the check of micro-batches is skipped. If a value of ``state`` can be read
    but not loaded, the check of resuming needs ``save`` and ``load``.

    Attributes:
        step: trains on one batch: forward, scale, backward, clip, step, update, schedule, averages.
        state: name -> training state other than the scaler: objects with ``state_dict()``, tensors,
            arrays, numbers, or callables that return these. The default checkpoint has only this
            state, so a loop with other state does not resume. A skipped step may change: results of
            the forward pass, such as batch-norm statistics or a hidden state; a random number
            generator; a copy of the scale; a count whose name has neither ``step`` nor ``update``;
            and everything named ``data``.
        logged: returns the logged values of the last batch, by name.
        split: ``split(batch, parts)`` returns an argument of ``step`` that trains on the batch in
            that many micro-batches.
        save: returns a checkpoint, including the scaler; by default every ``state_dict()`` of
            `state` and the scaler.
        load: loads a checkpoint of ``save`` in a fresh loop.
    """

    step: Callable[..., object]
    state: Mapping[str, Any]
    logged: Callable[[], Mapping[str, Any]] | None = None
    split: Callable[[Any, int], Any] | None = None
    save: Callable[..., Any] | None = None
    load: Callable[[Any], object] | None = None


@contextmanager
def blame_user_code(where: str) -> Iterator[None]:
    """Raise LoopError for an exception of the user's code, with its place; the exception stays the
    cause.
    """
    try:
        yield
    except LoopError:
        raise
    except (Exception, SystemExit) as error:
        theirs = [
            call
            for call in traceback.extract_tb(error.__traceback__)
            if is_users(call.filename)
        ]
        at = (
            f" ({Path(theirs[-1].filename).name}:{theirs[-1].lineno})" if theirs else ""
        )
        raise LoopError(
            f"{where} raised {type(error).__name__}: {error}{at}"
        ) from error
