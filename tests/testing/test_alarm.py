"""No verdict comes from the clock: what is slow is not accused, and an alarm leaves nothing behind
for the next.
"""

import signal
import threading
import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip(
    "torch", reason="pip install -c constraints.txt 'ampsim[torch]'"
)

from ampsim.testing import Loop, check_loop  # noqa: E402
from ampsim.testing import alarm as alarms  # noqa: E402
from ampsim.testing.alarm import CannotJudgeError, OverdueError, alarm  # noqa: E402
from ampsim.testing.check import raise_findings  # noqa: E402
from ampsim.testing.loop import judge as loops  # noqa: E402
from ampsim.testing.scaler_checks import run as judge  # noqa: E402
from tests.testing.loops import RIGHT, batches  # noqa: E402

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no alarms"
)
TORCH = torch.amp.GradScaler
THREE = judge.chosen(
    names=[
        "skipped_step_changes_nothing",
        "get_scale_matches_scale",
        "misuse_raises",
    ]
)


@pytest.fixture(scope="module", autouse=True)
def judged_before():
    """Let the first judging of this process, which imports, be none that has a limit."""
    list(judge.run_checks(TORCH, THREE))


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(
        alarms, "AGAIN", 0.3
    )  # a busy machine takes so long for what is done in one alarm


def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.deep
def test_wall_limit_exceeds_cpu_limit(monkeypatch):
    monkeypatch.setattr(alarms, "WALL", 1e9)
    with alarm(0.05):
        threading.Event().wait(0.5)  # a busy machine
    with (
        pytest.raises(OverdueError, match=r"^did not end within 0.05 s of CPU time$"),
        alarm(0.05),
    ):
        spin(60.0)
    monkeypatch.setattr(alarms, "WALL", 2.0)
    with pytest.raises(OverdueError, match=r"^did not end within 0.1 s$"), alarm(0.05):
        threading.Event().wait()


@pytest.mark.parametrize(
    ("clock", "cpu", "said"),  # seconds when the alarm rings
    [
        (299.9, 59.9, None),
        (1.0, 60.0, "did not end within 60 s of CPU time"),
        (300.0, 59.9, "did not end within 300 s"),
        (300.0, 60.0, "did not end within 60 s of CPU time"),
    ],
)
def test_time_limit_is_of_cpu_time(clock, cpu, said, monkeypatch):
    now = [0.0, 0.0]
    both = SimpleNamespace(monotonic=lambda: now[0], process_time=lambda: now[1])
    monkeypatch.setattr(alarms, "time", both)
    seen = None
    with alarm(60.0):
        now[:] = clock, cpu
        try:
            signal.getsignal(signal.SIGALRM)(signal.SIGALRM, None)
        except OverdueError as error:
            seen = str(error)
        left, again = signal.getitimer(signal.ITIMER_REAL)
    assert seen == said
    assert (0.0 < left <= 60.0, again) == (True, alarms.AGAIN)


def test_late_signal_is_ignored():
    with alarm(60.0):
        ring = signal.getsignal(signal.SIGALRM)
    ring(signal.SIGALRM, None)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


class Spins(TORCH):
    def step(self, optimizer, *args, **kwargs):
        spin(60.0)


class Deadlocks(TORCH):
    def step(self, optimizer):
        lock = threading.Lock()
        with lock, lock:
            pass


@pytest.mark.parametrize(
    "kind", [Spins, pytest.param(Deadlocks, marks=pytest.mark.deep)]
)
def test_second_hang_ends_the_run(kind):
    results = [
        *judge.run_checks(
            kind,
            THREE,
            limit=0.1,
            expected={"skipped_step_changes_nothing": "raised x"},
        )
    ]
    assert [(each.outcome, each.is_overdue) for each in results] == [
        ("failed", True),
        ("error", True),
    ]
    with pytest.raises(
        CannotJudgeError,
        match=r" cannot be checked: skipped_step_changes_nothing: did not end",
    ):
        raise_findings(results)
    assert {each.outcome for each in judge.run_checks(TORCH, THREE)} == {"passed"}


def test_time_limit_ends_hanging_loop(monkeypatch):
    check_loop(
        RIGHT["sgd"], batches(), ["step_changes_parameters"]
    )  # an alarm in torch's first step leaves half an import behind
    monkeypatch.setattr(alarms, "WALL", 2.0)

    def stuck(scaler):
        loop = RIGHT["sgd"](scaler)

        def step(batch):
            loop.step(batch)
            if scaler.get_scale() == 2.0**7:  # after a skip
                threading.Event().wait()

        return Loop(step, loop.state)

    hung, passed = loops.judge_loop(
        stuck,
        batches(),
        ["skipped_step_changes_nothing", "step_changes_parameters"],
        limit=0.5,
    )
    assert [hung.outcome, hung.is_overdue, passed.outcome] == ["failed", True, "passed"]
    assert "where    test_alarm.py:" in hung.text
