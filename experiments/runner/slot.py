"""A device with a time limit, and the lines printed while it is used."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

CLOSING = 5.0  # s kept for the last archives
QUIET = 10.0  # s between two lines of progress


class Part(NamedTuple):
    """The outcome of a part.

    One of: ran, resumed, up to date, skipped, failed, interrupted (by the user), or stopped (at its
    time limit).
    """

    name: str
    outcome: str
    note: str = ""


@dataclass(frozen=True)
class Slot:
    """A device and its time limit."""

    device: str  # its type
    data: Path  # folder of the data files
    logs: Path  # folder of the logs of tests
    end: float  # of `time.monotonic`
    jobs: int = 2  # worker processes
    dry: bool = False  # a few steps of each part

    @property
    def left(self) -> float:
        """The remaining seconds."""
        return self.end - CLOSING - time.monotonic()

    def say(self, text: str) -> None:
        """Print a line with the remaining time."""
        minutes, seconds = divmod(max(0, round(self.left)), 60)
        print(f"[{minutes}:{seconds:02} left] {text}", flush=True)

    def files(self) -> list[Path]:
        """Return all data, journals, and logs, the smallest first, so that most files fit."""
        found: set[Path] = set()
        for folder in (self.data, self.logs):
            for suffix in (".jsonl", ".part", ".log"):
                found |= set(folder.glob(f"*{suffix}"))
        return sorted(found, key=lambda path: path.stat().st_size)


class Lines:
    """Prints the progress of an experiment."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.last = time.monotonic()
        self.resumed = False

    def count(
        self, stem: str, units: int, steps: int, done: int, expected: float | None = None
    ) -> None:
        """Note the units of an experiment, and how many are done."""
        self.stem = stem
        self.units = units
        self.done = done
        self.resumed = done > 0

    def step(self, unit: str, steps: int) -> None:
        """Print a line of progress now and then."""
        now = time.monotonic()
        if now - self.last >= QUIET:
            self.last = now
            self.slot.say(f"{self.stem}: {self.done} of {self.units} units")

    def finish(self, unit: str) -> None:
        """Note that a unit is done."""
        self.done += 1
        self.step(unit, 0)
