"""The order of events in one step of a loop: what each line of the user's code changed."""

import sys
import sysconfig
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

from ampsim.testing.loop.loop import LoopError, is_theirs
from ampsim.testing.loop.run import Fault, Run
from ampsim.testing.loop.runs import Batch, Make, advance, begin

MOST = 9  # events that are told
STANDARD = sysconfig.get_paths()["stdlib"]


class Lines:
    """A tracer of Python's, which asks after each line of the user's what has changed.

    Attributes:
        told: (file:line, what it changed), in their order.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._seen, self._last = run, run.look(), ""
        self.told: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if name.startswith(("<", STANDARD)) or not is_theirs(name):
            return None
        if event == "call":
            return self
        self._look()
        back = frame.f_back if event == "return" else frame
        if back is not None and is_theirs(back.f_code.co_filename):
            self._last = f"{Path(back.f_code.co_filename).name}:{back.f_lineno}"
        return self

    def _look(self) -> None:
        now = self._run.look()
        changed = [each for name, each in now.items() if each != self._seen.get(name)]
        self._seen = now
        if changed and self._last:
            self.told.append((self._last, ", ".join(text for text, _ in changed)))


def order(make: Make, batches: list[Batch], scale: float, fault: Fault) -> str:
    """Return the events of the step on the last of these batches, in one line; "" if they are not visible.

    Args:
        make: the loop's.
        batches: the last one is looked at.
        scale: at the start.
        fault: in the last step.
    """
    try:
        run = advance(begin(make, scale), batches[:-1])
        if not run.look() or sys.gettrace() is not None:
            return ""
        lines = Lines(run)
        with run.planting(fault) if fault.value != 1 else nullcontext():
            sys.settrace(lines)
            try:
                advance(run, batches[-1:])
            finally:
                sys.settrace(None)
    except LoopError:
        return ""
    told = [f"{where} {what}" for (where, what), _ in groupby(lines.told)]
    return "; ".join(told[:MOST]) + (f"; and {len(told) - MOST} more" if len(told) > MOST else "")
