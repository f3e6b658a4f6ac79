"""The time that units still take, from the committed data and from what this run measured."""

from collections.abc import Mapping

TRUSTED = 60.0  # s, at most, of measured work before it outweighs the committed data
SHARE = 0.1  # of an experiment, before its speed alone predicts its end


class TimeLeft:
    """Estimates how long the experiments of one command still take.

    Args:
        expected: Seconds that each experiment takes according to committed data, in the order in
            which they run; None where there is no such data.
    """

    def __init__(self, expected: Mapping[str, float | None]) -> None:
        self.later = dict(expected)
        self.before = (0.0, 0.0)  # seconds measured and expected, of experiments that are over
        self.seconds: float | None = None  # expected, of the current experiment
        self.measured = self.share = self.first = 0.0

    def start(self, stem: str, seconds: float | None, share: float, now: float) -> None:
        """Go on to an experiment of which a share is done."""
        self.before = self._totals()
        while stem in self.later:
            self.later.pop(next(iter(self.later)))
        self.seconds, self.share, self.first = seconds, share, share
        self.begun = self.last = now
        self.measured, self.ticked = 0.0, False
        total = (seconds or 0.0) + sum(value or 0.0 for value in self.later.values())
        self.trusted = min(TRUSTED, total / 4)

    def report(self, share: float, now: float, *, tick: bool) -> None:
        """Note the share of the current experiment that is done; a `tick` is within a unit."""
        if tick and self.share == self.first and not self.ticked:
            # Loading packages is over and says nothing of the speed.
            self.ticked, self.begun, self.first = True, now, share
        self.share, self.last, self.measured = share, now, now - self.begun

    def estimate(self, now: float) -> float | None:
        """Return the seconds left; None if nothing is known, or if the work is overdue."""
        measured, expected = self._totals()
        weight = self.trusted + expected
        speed = (self.trusted + measured) / weight if weight else 1.0
        left = speed * sum(value or 0.0 for value in self.later.values()) - (now - self.last)
        done = self.share - self.first
        if self.seconds is not None:
            left += (1 - self.share) * self.seconds * speed
        elif done >= SHARE:
            left += (1 - self.share) * self.measured / done
        else:
            return None
        return left if left > 0 else None

    def text(self, now: float) -> str:
        """Return the time left in words."""
        left = self.estimate(now)
        if left is None:
            return "unknown"
        return f"{'at least ' * (None in self.later.values())}{duration(left)}"

    def _totals(self) -> tuple[float, float]:
        """Return the seconds measured and expected so far, where both are known."""
        measured, expected = self.before
        if self.seconds is None:
            return self.before
        return measured + self.measured, expected + (self.share - self.first) * self.seconds


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes, or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
