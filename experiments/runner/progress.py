"""How far a run is: a bar on a terminal, a plain line now and then where the output goes to a file."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

QUIET = 10.0  # s between two plain lines


class Reporter:
    """Counts units and, within them, steps. Units that were done before the run started count as done.

    Args:
        stem: stands in front of each line.
        units: units in all.
        steps: steps a unit.
        done: units already done.
    """

    def __init__(self, stem: str, units: int, steps: int, done: int) -> None:
        self.stem, self.units, self.steps = stem, units, steps
        self.finished = done
        self.under_way: dict[str, int] = {}  # unit -> steps done
        self.console = Console()
        self.start = self.last = time.monotonic()
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} % of steps"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task: TaskID = self.progress.add_task(self._units(), total=units * steps, completed=done * steps)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def step(self, unit: str, steps: int) -> None:
        """A unit under way has done so many steps."""
        self.under_way[unit] = steps
        self._show(force=False)

    def finish(self, unit: str, seconds: float) -> None:
        """A unit is done and kept."""
        self.under_way.pop(unit, None)
        self.finished += 1
        if self.console.is_terminal:
            self.progress.console.print(f"{self.stem}: {unit} in {seconds:.1f} s", highlight=False)
        self._show(force=self.finished == self.units)

    def _units(self) -> str:
        return f"{self.stem}: {self.finished} of {self.units} units"

    def _show(self, *, force: bool) -> None:
        done = self.finished * self.steps + sum(self.under_way.values())
        self.progress.update(self.task, completed=done, description=self._units())
        now = time.monotonic()
        if not self.console.is_terminal and (force or now - self.last >= QUIET):
            self.last = now
            share = 100 * done / (self.units * self.steps)
            print(f"{self._units()}, {share:.0f} % of steps, {now - self.start:.0f} s", flush=True)
