"""What a run prints of its progress, on a clock of its own."""

import pytest

from experiments.runner import progress
from experiments.runner.progress import Steps, Units, duration


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_time_left_is_of_this_run(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    units = Units("one", total=10, earlier=4)
    for _ in range(6):
        clock[0] += 6.0
        units.finish()
    assert capsys.readouterr().out.splitlines() == [
        "one: 6 of 10 units, elapsed 12 s, time left 24 s",
        "one: 8 of 10 units, elapsed 24 s, time left 12 s",
    ]


def test_steps_are_printed_rarely(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    steps = Steps("one, seed 0", 30)
    for step in range(30):
        clock[0] += 0.5
        steps(step + 1)
    assert capsys.readouterr().out == "one, seed 0: 20 of 30 steps\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(15.2, "15 s"), (600, "10 min"), (9000, "2.5 h")]
)
def test_duration_has_a_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text
