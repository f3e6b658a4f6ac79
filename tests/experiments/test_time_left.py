"""The time left that a run prints, against the truth on a clock of its own."""

import pytest

from experiments.runner.time_left import TimeLeft, duration

UNITS, TICKS = 40, 10
LOADING = {1: 5.0, TICKS: 20.0}  # s until the first step, by the ticks of a unit


def run(
    left: TimeLeft, stem: str, expected: float | None, seconds: float, clock: float, ticks: int
):
    """Yield each instant of an experiment whose last quarter of units take four times as long."""
    left.start(stem, expected, 0.0, clock)
    weights = [1.0] * (UNITS * 3 // 4) + [4.0] * (UNITS // 4)
    start, done = clock + LOADING[ticks], 0.0
    yield clock, start + seconds
    for unit, weight in enumerate(weights):
        for tick in range(1, ticks + 1):
            done += weight / ticks / sum(weights)
            clock = start + seconds * done
            left.report((unit + tick / ticks) / UNITS, clock, tick=tick < ticks)
            yield clock, start + seconds


@pytest.mark.parametrize("ticks", [1, TICKS])
@pytest.mark.parametrize("expected", [60.0, None])
@pytest.mark.parametrize("seconds", [10.0, 60.0, 900.0])
def test_time_left_is_bounded(ticks: int, expected: float | None, seconds: float) -> None:
    left = TimeLeft({})
    known = 0
    for now, end in run(left, "one", expected, seconds, 100.0, ticks):
        estimate = left.estimate(now)
        known += estimate is not None
        assert estimate is None or estimate <= 10 * max(1.0, end - now)
    assert known > UNITS // 2


def test_time_left_counts_later_experiments() -> None:
    left = TimeLeft({"one": 60.0, "two": 600.0})
    for now, end in run(left, "one", 60.0, 300.0, 0.0, TICKS):  # five times slower than expected
        assert 0.1 < left.estimate(now) / (end - now + 3000.0) < 2
    for now, last in run(left, "two", 600.0, 3000.0, end, TICKS):
        assert now > last - 1 or 0.2 < left.estimate(now) / (last - now) < 10


def test_time_left_starts_unknown() -> None:
    left = TimeLeft({"one": None, "two": None})
    left.start("one", None, 0.0, 0.0)
    assert left.text(0.0) == "unknown"
    left.report(0.5, 10.0, tick=False)
    assert left.text(10.0) == "at least 10 s"


@pytest.mark.parametrize(("seconds", "text"), [(15.2, "15 s"), (600, "10 min"), (9000, "2.5 h")])
def test_duration_has_a_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text
