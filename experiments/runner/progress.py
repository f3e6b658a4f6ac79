"""Prints how far the work is: one line that is updated on a terminal, else one line now and then."""

import time
from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

from experiments.runner.time_left import TimeLeft, duration

QUIET = 10.0  # s between two plain lines


class Bar(ProgressColumn):
    """Shows the units done, the time elapsed, and the time left of one command.

    Args:
        expected: Seconds that each experiment of the command takes according to committed data, in
            order; None where unknown. Empty for a command that runs one experiment.
    """

    def __init__(self, expected: Mapping[str, float | None] | None = None) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis"))
        self.stems = list(expected or {})
        self.left = TimeLeft(expected or {})
        self.console = Console()
        self.begun = self.printed = time.monotonic()
        self.progress = Progress(self, console=self.console, disable=not self.console.is_terminal)
        self.progress.add_task("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def count(
        self, stem: str, units: int, steps: int, done: int, expected: float | None = None
    ) -> None:
        """Start an experiment; see `experiments.runner.execute.Progress`."""
        self.stem, self.units, self.steps, self.done = stem, units, steps, done
        self.under_way: dict[str, int] = {}  # unit -> steps done
        self.left.start(stem, expected, done / units, time.monotonic())
        self.progress.start()  # not before, so that no line stands over an error message
        if done < units:
            self._print()

    def step(self, unit: str, steps: int) -> None:
        """Note that a unit under way has done so many steps."""
        self.under_way[unit] = steps
        self._report(tick=True)

    def finish(self, unit: str) -> None:
        """Note that a unit is done and kept."""
        self.under_way.pop(unit, None)
        self.done += 1
        self._report(tick=False)

    def line(self) -> str:
        """Return the line as it is now."""
        now = time.monotonic()
        place = ""
        if self.stem in self.stems:
            place = f"experiment {self.stems.index(self.stem) + 1} of {len(self.stems)}, "
        return (
            f"{place}{self.stem}: {self.done} of {self.units} units, "
            f"elapsed {duration(now - self.begun)}, time left {self.left.text(now)}"
        )

    def render(self, task: Task) -> Text:
        """Return the line for the terminal."""
        return Text(self.line())

    def _report(self, *, tick: bool) -> None:
        """Note the work done; print a plain line after a while."""
        share = (self.done + sum(self.under_way.values()) / self.steps) / self.units
        now = time.monotonic()
        self.left.report(share, now, tick=tick)
        if self.done < self.units and now - self.printed >= QUIET:
            self._print()

    def _print(self) -> None:
        if not self.console.is_terminal:
            self.printed = time.monotonic()
            print(self.line(), flush=True)
