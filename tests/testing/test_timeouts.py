"""Timeouts are choices: they fire or not, whatever their length."""

from collections.abc import Callable

import pytest

from ampsim.testing.scheduler import FailingScheduleError, Scheduler, explore, run
from tests.testing.programs import outcomes


def alive_after_join(c: Scheduler) -> bool:
    thread = c.spawn("worker", c.point, "long")
    thread.join(timeout=1.0)
    return thread.is_alive()


def event_in_time(c: Scheduler) -> bool:
    event = c.sync.Event()
    c.spawn("setter", event.set)
    return event.wait(1.0)


def notified_in_time(c: Scheduler) -> bool:
    condition = c.sync.Condition()

    def notify() -> None:
        with condition:
            condition.notify()

    with condition:
        c.spawn("notifier", notify)
        return condition.wait(1.0)


def item_in_time(c: Scheduler) -> bool:
    q = c.sync.Queue()
    c.spawn("putter", q.put, "item")
    try:
        return bool(q.get(timeout=1.0))
    except c.sync.Empty:
        return False


def lock_in_time(c: Scheduler) -> bool:
    lock, held = c.sync.Lock(), c.sync.Event()

    def hold() -> None:
        with lock:
            held.set()

    c.spawn("holder", hold)
    held.wait()
    return lock.acquire(timeout=1.0)


TIMED = [
    alive_after_join,
    event_in_time,
    notified_in_time,
    item_in_time,
    lock_in_time,
]


@pytest.mark.parametrize("program", TIMED)
def test_a_timeout_fires_or_not(program: Callable[[Scheduler], bool]) -> None:
    assert outcomes(program, preemptions=2) == {True, False}


def test_avoidable_timeout_counts_as_preemption() -> None:
    assert outcomes(event_in_time, preemptions=0) == {True}
    assert outcomes(event_in_time, preemptions=1) == {True, False}


def test_unavoidable_timeout_fires() -> None:
    done = run(lambda c: c.sync.Event().wait(1e9))
    assert done.value is False
    assert str(done.trace[0]) == "main: wait Event-1 timed out"


def test_notify_after_timeout_wakes_next() -> None:
    def program(c: Scheduler) -> None:
        condition, waiting = c.sync.Condition(), c.sync.Queue()

        def wait(timeout: float | None) -> None:
            with condition:
                waiting.put(1)
                condition.wait(timeout)

        impatient = c.spawn("impatient", wait, 1.0)
        waiting.get()
        patient = c.spawn("patient", wait, None)
        waiting.get()
        impatient.join()
        with condition:
            condition.notify()
        patient.join()

    assert explore(program).exhausted


def test_timed_out_wait_consumes_notify() -> None:
    def program(c: Scheduler) -> None:
        condition, waiting = c.sync.Condition(), c.sync.Queue()

        def wait(timeout: float | None) -> None:
            with condition:
                waiting.put(1)
                if condition.wait(timeout):
                    condition.notify()

        c.spawn("impatient", wait, 1.0)
        waiting.get()
        patient = c.spawn("patient", wait, None)
        waiting.get()
        with condition:
            condition.notify()
        patient.join()

    with pytest.raises(
        FailingScheduleError,
        match=r"(?s)^Deadlock.*impatient: wait \S+ timed out.*notify",
    ):
        explore(program)
