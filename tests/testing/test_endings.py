"""How runs end: well, by an exception, stuck, or in the middle. The next run is never disturbed."""

import contextlib
from collections.abc import Callable

import pytest

from ampsim.testing.scheduler import (
    DeadlockError,
    LivelockError,
    Program,
    Scheduler,
    attempt,
    explore,
    run,
)
from tests.testing.programs import nothing_special


def polling(pause: Callable[[Scheduler], None]) -> Program:
    """One task sets what another looks at again and again."""

    def program(c: Scheduler) -> None:
        event = c.sync.Event()
        c.spawn("setter", event.set)
        while not event.is_set():
            pause(c)

    return program


def test_task_exception_names_task_and_schedule() -> None:
    def program(c: Scheduler) -> None:
        def fail() -> None:
            c.point("here")
            raise KeyError("lost")

        c.spawn("worker", fail).join()

    with pytest.raises(KeyError, match="lost") as caught:
        run(program, {2: 1})
    assert caught.value.__notes__ == [
        "in task 'worker'; replay: run(program, schedule={})"
    ]
    done = attempt(program)
    assert [(task, type(error)) for task, error in done.errors] == [
        ("worker", KeyError)
    ]
    assert "KeyError in task 'worker'" in str(done)
    assert "point here" in str(done)


def test_a_deadlock_of_the_main_task() -> None:
    def program(c: Scheduler) -> None:
        c.spawn("worker", c.sync.Event().wait)
        c.sync.Queue().get()

    with pytest.raises(DeadlockError) as caught:
        run(program)
    text = str(caught.value)
    assert "no task can go on" in text
    assert "get Queue-1 (0 items)" in text
    assert "wait Event-1 (not set)" in text
    assert "replay: run(program, schedule={})" in text
    assert "main: start worker" in text


def test_livelock_is_reported_at_max_steps() -> None:
    with pytest.raises(LivelockError, match="no end after 50 steps") as caught:
        run(polling(lambda c: None), max_steps=50)
    assert "main: is_set Event-1" in str(caught.value)


def test_sleeping_loop_yields_to_others() -> None:
    assert explore(polling(lambda c: c.sync.sleep(0.01)), preemptions=1).exhausted


def test_daemons_are_not_waited_for() -> None:
    unwound = []

    def program(c: Scheduler) -> str:
        jobs = c.sync.Queue()

        def serve() -> None:
            try:
                while True:
                    jobs.get()
            finally:
                unwound.append(True)

        c.sync.Thread(target=serve, daemon=True).start()
        jobs.put(1)
        return "done"

    assert run(program).value == "done"
    assert explore(program).exhausted
    assert unwound


def test_tasks_suppressing_exceptions_still_end() -> None:
    def program(c: Scheduler) -> None:
        def stubborn() -> None:
            for _ in range(3):
                with contextlib.suppress(BaseException):
                    c.sync.Event().wait()
            while True:
                c.point("going on for ever")

        for name in "abc":
            c.spawn(name, stubborn)

    assert isinstance(attempt(program).stuck, DeadlockError)


def test_nested_or_missing_run_raises() -> None:
    with pytest.raises(RuntimeError, match="one run at a time"):
        run(lambda c: run(nothing_special))
    with pytest.raises(
        RuntimeError, match=r"inside the program given to scheduler\.run"
    ):
        Scheduler.sync.Lock()
    run(nothing_special)  # the refusals left nothing behind
