"""The order of events in one step of a loop: what each line of the user's code changed."""

import sys
from contextlib import nullcontext
from itertools import groupby

from ampsim.testing.lines import Lines
from ampsim.testing.loop.loop import LoopError
from ampsim.testing.loop.run import Fault
from ampsim.testing.loop.runs import Batch, Make, advance, begin

MOST = 9  # events that are shown


def order(make: Make, batches: list[Batch], scale: float, fault: Fault) -> str:
    """Return the events of the step on the last of these batches, in one line; "" if they are not
    visible.

    Args:
        make: the loop's.
        batches: the last one is looked at.
        scale: at the start.
        fault: in the last step.
    """
    try:
        run = advance(begin(make, scale), batches[:-1])
        if not (watched := run.look()) or sys.gettrace() is not None:
            return ""
        lines = Lines(watched)
        with run.planting(fault) if fault.value != 1 else nullcontext():
            sys.settrace(lines)
            try:
                advance(run, batches[-1:])
            finally:
                sys.settrace(None)
    except LoopError:
        return ""
    places = groupby(lines.changes, lambda change: change.where)
    told = [
        f"{where} {', '.join(change.what for change in group)}"
        for where, group in places
    ]
    return "; ".join(told[:MOST]) + (
        f"; and {len(told) - MOST} more" if len(told) > MOST else ""
    )
