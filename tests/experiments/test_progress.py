"""The time left that a run prints, against the truth on a clock of its own."""

import itertools

import pytest

from experiments.runner import progress
from experiments.runner.progress import Bar, duration

UNITS, STEPS = 40, 10


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def run(
    bar: Bar, stem: str, expected: float | None, seconds: float, clock: list[float]
):
    """Yield before each step of an experiment of equal steps, with the seconds that it still takes."""
    bar.count(stem, UNITS, STEPS, 0, expected)
    each = seconds / (UNITS * STEPS)
    for unit, step in itertools.product(range(UNITS), range(STEPS)):
        yield seconds - each * (unit * STEPS + step)
        clock[0] += each
        bar.step(str(unit), step + 1)
        if step + 1 == STEPS:
            bar.finish(str(unit))


@pytest.mark.parametrize("expected", [98.0, 2445.0, 10.0, None])
def test_estimate_comes_near_the_truth(
    expected: float | None, clock: list[float]
) -> None:
    bar = Bar()
    for truth in run(bar, "one", expected, 98.0, clock):
        if truth < 49:
            assert 0.5 * truth <= bar.seconds_left(clock[0]) <= 2 * truth


def test_later_experiments_are_counted(clock: list[float]) -> None:
    bar = Bar({"one": 60.0, "two": 600.0})
    for truth in run(bar, "one", 60.0, 300.0, clock):  # five times slower than expected
        assert 0.1 < bar.seconds_left(clock[0]) / (truth + 3000) <= 1
    for truth in run(bar, "two", 600.0, 3000.0, clock):
        assert 0.6 < bar.seconds_left(clock[0]) / truth <= 1


def test_unknown_times_are_named(clock: list[float]) -> None:
    bar = Bar({"one": None, "two": None})
    bar.count("one", 2, STEPS, 0)
    assert "time left unknown" in bar.line()
    clock[0] += 10.0
    bar.finish("unit")
    assert "one: 1 of 2 units, elapsed 10 s, time left at least 10 s" in bar.line()


@pytest.mark.parametrize(
    ("seconds", "text"), [(15.2, "15 s"), (600, "10 min"), (9000, "2.5 h")]
)
def test_duration_has_a_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text
