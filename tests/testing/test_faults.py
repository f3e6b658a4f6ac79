"""Interrupts, injected at a step."""

import pytest

from ampsim.testing.scheduler import (
    DeadlockError,
    Run,
    Scheduler,
    attempt,
    explore,
    run,
)


def guarded(c: Scheduler) -> list[str]:
    """Two workers enter a critical section; each tells when it leaves."""
    lock, log = c.sync.Lock(), []

    def work(name: str) -> None:
        with lock:
            c.point("inside")
        log.append(name)

    for name in "ab":
        c.spawn(name, work, name)
    return log


def step_of(done: Run, line: str) -> int:
    return [str(step) for step in done.trace].index(line)


def test_interrupted_task_frees_its_lock() -> None:
    inside = step_of(run(guarded), "a: point inside")
    done = run(guarded, interrupt_at={inside: "a"})
    assert done.value == ["b"]
    assert done.faults == ((inside, "a"),)
    assert f"interrupt_at={{{inside}: 'a'}}" in str(done)


def test_waiting_task_is_interrupted() -> None:
    def program(c: Scheduler) -> list[int]:
        queue, got = c.sync.Queue(), []
        c.spawn("loser", lambda: got.append(queue.get()))
        c.spawn("winner", lambda: got.append(queue.get() + 10))
        c.point("before")
        c.point("after")
        queue.put(1)
        return got

    waiting = attempt(program, {3: 1, 4: 1})
    step = step_of(waiting, "main: put Queue-1")
    done = attempt(program, {2: 1}, interrupt_at={step: "loser"})
    assert done.value == [11]
    assert done.failure is None


def test_interrupt_at_any_step_frees_lock() -> None:
    met = set[tuple[int, str]]()
    for step in range(len(run(guarded).trace)):
        for task in ("a", "b"):
            done = explore(
                guarded,
                preemptions=1,
                interrupt_at={step: task},
                check=lambda d: met.update(d.faults),
            )
            assert done.exhausted
    assert {task for _, task in met} == {"a", "b"}


@pytest.mark.parametrize("kind", ["Lock", "RLock"])
def test_interrupted_wait_reacquires_its_lock(kind: str) -> None:
    def program(c: Scheduler) -> list[str]:
        condition, log = c.sync.Condition(getattr(c.sync, kind)()), []

        def wait() -> None:
            with condition:
                try:
                    condition.wait()
                except KeyboardInterrupt:
                    condition.notify()  # raises if the lock is not held
                    log.append("interrupted")

        c.spawn("waiter", wait)
        with condition:
            c.point("busy")
            log.append("left")
        return log

    step = step_of(attempt(program, {0: 1}), "main: point busy")
    done = run(program, {0: 1}, interrupt_at={step: "waiter"})
    assert done.faults == ((step, "waiter"),)
    assert done.value == ["left", "interrupted"]
    assert isinstance(attempt(program).stuck, DeadlockError)  # nobody notifies
    for earlier in range(step):
        seen = {
            str(attempt(program, {0: 1}, interrupt_at={earlier: "waiter"}).failure)[:8]
        }
        assert seen <= {"None", "Deadlock"}


def test_replaced_interrupt_error_is_reported() -> None:
    def program(c: Scheduler) -> None:
        try:
            c.point("here")
        except KeyboardInterrupt as error:
            raise ValueError("changed") from error

    with pytest.raises(ValueError, match="changed") as caught:
        run(program, interrupt_at={0: "main"})
    assert caught.value.__notes__ == [
        "in task 'main'; replay: run(program, schedule={}, interrupt_at={0: 'main'})"
    ]
    assert str(caught.value.__cause__) == "injected at step 0"


def test_first_error_is_reported() -> None:
    def program(c: Scheduler) -> None:
        def fail(text: str) -> None:
            raise ValueError(text)

        c.spawn("a", fail, "first").join()
        fail("second")

    done = attempt(program)
    assert [(task, str(error)) for task, error in done.errors] == [
        ("a", "first"),
        ("main", "second"),
    ]
    assert str(done.failure) == "first"
    assert str(done).startswith("ValueError in task 'a': first\n")
    with pytest.raises(ValueError, match="first") as caught:
        run(program)
    assert caught.value.__notes__ == ["in task 'a'; replay: run(program, schedule={})"]


def test_errors_after_the_end_are_ignored() -> None:
    def program(c: Scheduler) -> None:
        def wait() -> None:
            try:
                c.sync.Event().wait()
            finally:
                raise ValueError("while it is unwound")

        c.spawn("waits", wait)

    done = attempt(program)
    assert (done.errors, isinstance(done.failure, DeadlockError)) == ((), True)
