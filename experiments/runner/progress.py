"""Prints how far the work is: a line now and then."""

import time
from dataclasses import dataclass

QUIET = 10.0  # s between two lines


@dataclass
class Steps:
    """Prints the steps of a unit under way; an experiment calls it after each step."""

    unit: str
    total: int

    def __post_init__(self) -> None:
        self.printed = time.monotonic()

    def __call__(self, done: int) -> None:
        if done < self.total and time.monotonic() - self.printed >= QUIET:
            self.printed = time.monotonic()
            print(f"{self.unit}: {done} of {self.total} steps", flush=True)


@dataclass
class Units:
    """Prints the units of an experiment that are done, and the time left at their pace.

    Attributes:
        stem: Name of the experiment.
        total: Number of its units.
        earlier: Units that were done before this run started.
        done: Units that are done.
    """

    stem: str
    total: int
    earlier: int

    def __post_init__(self) -> None:
        self.done = self.earlier
        self.start = self.printed = time.monotonic()

    def finish(self) -> None:
        """Note that a unit is done and kept."""
        self.done += 1
        now = time.monotonic()
        if self.done < self.total and now - self.printed >= QUIET:
            self.printed = now
            spent = now - self.start
            left = spent * (self.total - self.done) / (self.done - self.earlier)
            print(
                f"{self.stem}: {self.done} of {self.total} units, "
                f"elapsed {duration(spent)}, time left {duration(left)}",
                flush=True,
            )


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes, or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
