"""The loop under test: what a user's function makes, and what is wrong with it before any check is asked."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class LoopError(Exception):
    """The loop cannot be judged as it is given: wrong use, or an exception of its own. No check is broken."""


@dataclass(frozen=True)
class Loop:
    """A training loop, fresh and seeded, as ``make(scaler)`` returns it.

    A loop of JAX holds the scaler in `state`, and its functions take and return that: ``step(state, batch)`` gives the
    state after it, or that and what is logged, ``save(state)`` a checkpoint, ``load(checkpoint)`` a state. Its
    parameters are what stands under ``params`` or ``model``.

    Anything else with these attributes will do. What is not given is not asked, and a report says so in its last
    lines: without ``split`` no check asks for micro-batches, without a second parameter ``group``
        of make none for ranks,
    and a value of ``state`` that can be read and not loaded needs ``save`` and ``load`` for a check of resuming.

    Attributes:
        step: trains on one batch: forward, scale, backward, clip, step, update, schedule, averages.
        state: name -> all that training carries beyond the scaler: what has ``state_dict()``, tensors, arrays, numbers,
            or callables that return them. What it does not name no checkpoint of the kit has, so that a loop which
            carries more does not resume. A skipped step may move what a forward pass leaves, as batch-norm's statistics
            or a hidden state, a generator of random numbers, a copy of the scale, and a count whose name has neither
            ``step`` nor ``update``; and all that is called ``data``.
        logged: returns what is logged of the last batch, by name.
        split: ``split(batch, parts)`` returns what ``step`` takes to train on the batch in that many micro-batches.
        save: returns a checkpoint, the scaler included; without it the kit takes every ``state_dict()``.
        load: takes what ``save`` returned, in a fresh loop.
    """

    step: Callable[..., object]
    state: Mapping[str, Any]
    logged: Callable[[], Mapping[str, Any]] | None = None
    split: Callable[[Any, int], Any] | None = None
    save: Callable[..., Any] | None = None
    load: Callable[[Any], object] | None = None


@contextmanager
def blame_user_code(where: str) -> Iterator[None]:
    """Say where an exception of the user's code was raised; its own traceback stays above as the cause."""
    try:
        yield
    except LoopError:
        raise
    except (Exception, SystemExit) as error:
        theirs = [
            call for call in traceback.extract_tb(error.__traceback__) if is_theirs(call.filename)
        ]
        at = f" ({Path(theirs[-1].filename).name}:{theirs[-1].lineno})" if theirs else ""
        raise LoopError(
            f"{where} raised {type(error).__name__}: {error}{at}{_explained(str(error))}"
        ) from error


def _explained(text: str) -> str:
    """Return what is known of an error's text, as `ampsim explain` has it: its cause and its fix."""
    from ampsim.diagnose.formats import error_in

    known = error_in(text)
    return f"\n  cause    {known['cause']}\n  fix      {known['fix']}" if known else ""


def is_theirs(filename: str) -> bool:
    """Return whether a file is the user's."""
    return "site-packages" not in filename and Path(__file__).parent not in Path(filename).parents
