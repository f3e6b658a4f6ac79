"""How far the work is, and the time left: one bar on a terminal, a plain line now and then where output is kept."""

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

QUIET = 10.0  # s between two plain lines


class Bar:
    """A bar over all that one command does; `total` is in any unit of work, such as expected seconds."""

    def __init__(self, total: float) -> None:
        self.total = total
        self.console = Console()
        self.start = self.last = time.monotonic()
        self.progress = Progress(
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("done, left:"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=self.console,
            disable=not self.console.is_terminal,
            speed_estimate_period=600,  # s: experiments differ in how well their time was foreseen
        )
        self.task = self.progress.add_task("", total=total)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def show(self, done: float, text: str, *, force: bool = False) -> None:
        """Show how much of the total is done, and a text; a plain line only with `force` or after a while."""
        self.progress.start()  # at the first news, so that no bar stands over a refusal
        self.progress.update(self.task, completed=done, description=text)
        now = time.monotonic()
        if not self.console.is_terminal and (force or now - self.last >= QUIET):
            self.last = now
            spent = now - self.start
            left = f", {spent * (self.total / done - 1):.0f} s left" if 0 < done < self.total else ""
            print(f"{text}; {100 * done / self.total:.0f} %, {spent:.0f} s{left}", flush=True)


@dataclass(frozen=True)
class Slot:
    """The part of a bar that belongs to one experiment."""

    bar: Bar
    start: float
    length: float


class Reporter:
    """Counts units and, within them, steps. Units that were done before the run started count as done.

    Args:
        stem: stands in front of each line.
        units: units in all.
        steps: steps per unit.
        done: units already done.
        slot: where in which bar this is shown.
    """

    def __init__(self, stem: str, units: int, steps: int, done: int, slot: Slot) -> None:
        self.stem, self.units, self.steps, self.slot = stem, units, steps, slot
        self.finished = done
        self.under_way: dict[str, int] = {}  # unit -> steps done

    def step(self, unit: str, steps: int) -> None:
        """Note that a unit under way has done so many steps."""
        self.under_way[unit] = steps
        self._show(force=False)

    def finish(self, unit: str) -> None:
        """Note that a unit is done and kept."""
        self.under_way.pop(unit, None)
        self.finished += 1
        self._show(force=self.finished == self.units)

    def _show(self, *, force: bool) -> None:
        share = (self.finished * self.steps + sum(self.under_way.values())) / (self.units * self.steps)
        text = f"{self.stem}: {self.finished} of {self.units} units"
        self.slot.bar.show(self.slot.start + share * self.slot.length, text, force=force)
