"""How far the work is, and the time left: one bar on a terminal, a plain line now and then where output is kept."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

QUIET = 10.0  # s between two plain lines


class Bar:
    """A bar over all experiments that one command runs, in expected seconds; it counts the units of the current one."""

    def __init__(self, total: float) -> None:
        self.total = total
        self.console = Console()
        self.start = self.last = time.monotonic()
        columns = (
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("done, left:"),
        )
        # Experiments differ in how well their time was foreseen, so the speed is an average over 600 s.
        self.progress = Progress(
            BarColumn(), *columns, TimeRemainingColumn(), TextColumn("{task.description}"),
            console=self.console, disable=not self.console.is_terminal, speed_estimate_period=600,
        )  # fmt: skip
        self.task = self.progress.add_task("", total=total)
        self.before = self.seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def expect(self, seconds: float) -> None:
        """Go on to the next experiment, which is expected to take so long."""
        self.before, self.seconds = self.before + self.seconds, seconds

    def count(self, stem: str, units: int, steps: int, done: int) -> None:
        """Count units of `steps` steps each; those that were done before the run started count as done."""
        self.stem, self.units, self.steps, self.done = stem, units, steps, done
        self.under_way: dict[str, int] = {}  # unit -> steps done

    def step(self, unit: str, steps: int) -> None:
        """Note that a unit under way has done so many steps."""
        self.under_way[unit] = steps
        self._show()

    def finish(self, unit: str) -> None:
        """Note that a unit is done and kept."""
        self.under_way.pop(unit, None)
        self.done += 1
        self._show()

    def _show(self) -> None:
        """Move the bar; print a plain line after a while, and when all units of an experiment are done."""
        share = (self.done + sum(self.under_way.values()) / self.steps) / self.units
        done, text = (
            self.before + share * self.seconds,
            f"{self.stem}: {self.done} of {self.units} units",
        )
        self.progress.start()  # at the first news, so that no bar stands over a refusal
        self.progress.update(self.task, completed=done, description=text)
        now = time.monotonic()
        if not self.console.is_terminal and (self.done == self.units or now - self.last >= QUIET):
            self.last, spent = now, now - self.start
            known = (
                self.total / 100 <= done < self.total
            )  # from less, the time left would be a guess
            left = f", {spent * (self.total / done - 1):.0f} s left" if known else ""
            print(f"{text}; {100 * done / self.total:.0f} %, {spent:.0f} s{left}", flush=True)
