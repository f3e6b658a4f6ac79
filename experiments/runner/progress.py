"""Prints how far the work is: a line now and then."""

import time
from collections.abc import Mapping

QUIET = 10.0  # s between two lines
PRIOR = 30.0  # s, at most, that the committed data counts as, beside what this run has measured
SHARE = 0.1  # of the work, after which what this run has measured outweighs the committed data


class Bar:
    """Prints the units done, the time elapsed, and the time left of one command.

    Args:
        expected: Seconds that each experiment of the command takes according to committed data, in
            order; None where unknown. Empty for a command that runs one experiment.
    """

    def __init__(self, expected: Mapping[str, float | None] | None = None) -> None:
        self.expected = dict(expected or {})
        self.later = dict(self.expected)
        self.begun = self.printed = time.monotonic()
        self.spent = self.planned = 0.0  # s, of the experiments that are over

    def count(
        self,
        stem: str,
        units: int,
        steps: int,
        done: int,
        expected: float | None = None,
    ) -> None:
        """Start an experiment.

        Args:
            stem: Name of the experiment.
            units: Number of its units.
            steps: Steps of each unit.
            done: Units that were done before this run started.
            expected: Seconds that all units take according to committed data; None if unknown.
        """
        self.stem, self.units, self.steps, self.done = stem, units, steps, done
        self.seconds, self.first = expected, done / units
        self.under_way: dict[str, int] = {}  # unit -> steps done
        self.start = time.monotonic()
        while stem in self.later:
            del self.later[next(iter(self.later))]
        if done < units:
            self._print()

    def step(self, unit: str, steps: int) -> None:
        """Note that a unit under way has done so many steps."""
        self.under_way[unit] = steps
        if time.monotonic() - self.printed >= QUIET:
            self._print()

    def finish(self, unit: str) -> None:
        """Note that a unit is done and kept."""
        self.under_way.pop(unit, None)
        self.done += 1
        if self.done < self.units:
            if time.monotonic() - self.printed >= QUIET:
                self._print()
        elif self.seconds is not None:
            self.spent += time.monotonic() - self.start
            self.planned += (1 - self.first) * self.seconds

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds left at an instant of `time.monotonic`; None if nothing is known."""
        share = (self.done + sum(self.under_way.values()) / self.steps) / self.units
        spent, done = now - self.start, share - self.first
        if self.seconds is None:
            return spent * (1 - share) / done if done >= SHARE else None
        left = (1 - share) * self.seconds + sum(
            each or 0.0 for each in self.later.values()
        )
        planned = self.planned + done * self.seconds
        prior = min(PRIOR, SHARE * (planned + left))
        pace = (self.spent + spent + prior) / (planned + prior or 1.0)
        return pace * left

    def line(self) -> str:
        """Return the line as it is now."""
        now = time.monotonic()
        left = self.seconds_left(now)
        bound = "at least " * (None in self.later.values())
        text = "unknown" if left is None else bound + duration(left)
        place = ""
        if len(self.expected) > 1:
            number = len(self.expected) - len(self.later)
            place = f"experiment {number} of {len(self.expected)}, "
        return (
            f"{place}{self.stem}: {self.done} of {self.units} units, "
            f"elapsed {duration(now - self.begun)}, time left {text}"
        )

    def _print(self) -> None:
        self.printed = time.monotonic()
        print(self.line(), flush=True)


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes, or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
