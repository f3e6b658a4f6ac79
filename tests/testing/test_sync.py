"""Several threads on `scheduler.sync`: what real threads do is among what is explored, or all of
it.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from ampsim.testing.scheduler import Scheduler, attempt, run
from tests.examples import examples
from tests.testing.programs import REAL, outcome_of, outcomes, schedules


def together(sync: Any, *bodies: Callable[[], Any]) -> None:
    threads = [sync.Thread(target=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hand_over(sync: Any) -> Any:
    """A bounded queue keeps the order."""
    q, out = sync.Queue(1), []
    together(
        sync,
        lambda: [q.put(i) for i in range(4)],
        lambda: [out.append(q.get()) for _ in range(4)],
    )
    return tuple(out)


def ping_pong(sync: Any) -> Any:
    """Two threads take turns by one condition."""
    condition, turn, out = sync.Condition(), [0], []

    def play(me: int) -> None:
        for _ in range(2):
            with condition:
                condition.wait_for(lambda: turn[0] == me)
                out.append(me)
                turn[0] = 1 - me
                condition.notify()

    together(sync, lambda: play(0), lambda: play(1))
    return tuple(out)


def broadcast(sync: Any) -> Any:
    """notify_all wakes everyone; a nested hold of an RLock is given up and taken back whole."""
    condition, go, out = sync.Condition(sync.RLock()), [False], []

    def wait(name: str) -> None:
        with condition, condition:
            while not go[0]:
                condition.wait()
            out.append(name)

    def start() -> None:
        with condition:
            go[0] = True
            condition.notify_all()

    together(sync, lambda: wait("a"), lambda: wait("b"), start)
    return tuple(sorted(out))


def one_wakes(sync: Any) -> Any:
    """notify(1) wakes the one that waited longest, with a plain Lock below."""
    condition, out, waiting = sync.Condition(sync.Lock()), [], sync.Queue()

    def wait(name: str) -> None:
        with condition:
            waiting.put(name)
            condition.wait()
            out.append(name)
            condition.notify()

    first = sync.Thread(target=wait, args=("first",))
    first.start()
    waiting.get()
    with condition:
        second = sync.Thread(target=wait, kwargs={"name": "second"})
        second.start()
    waiting.get()
    with condition:
        condition.notify()
    first.join()
    second.join()
    return tuple(out)


def identity(sync: Any) -> Any:
    """Threads know themselves; a subclass runs its own run."""

    class Mine(sync.Thread):  # type: ignore[misc]
        def run(self) -> None:
            self.seen = (
                sync.current_thread() is self
                and self.ident == sync.get_ident()
                and self.name == "mine"
            )

    main = sync.current_thread()
    thread = Mine(name="mine", daemon=True)
    before = (thread.is_alive(), thread.ident)
    thread.start()
    thread.join()
    return (
        before,
        thread.seen,
        thread.is_alive(),
        thread.daemon,
        main is sync.current_thread(),
    )


def refusals(sync: Any) -> Any:
    thread = sync.Thread(target=lambda: None)
    lock = sync.RLock()
    early = outcome_of(thread.join)
    thread.start()
    lock.acquire()
    foreign = []
    together(sync, lambda: foreign.append(outcome_of(lock.release)))
    thread.join()
    return (
        early,
        outcome_of(thread.start),
        outcome_of(sync.current_thread().join),
        *foreign,
    )


PROGRAMS = [
    hand_over,
    ping_pong,
    broadcast,
    one_wakes,
    identity,
    refusals,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_schedule_matches_real_threads(program: Callable[[Any], Any]) -> None:
    assert outcomes(lambda c: program(c.sync), preemptions=1) == {program(REAL)}


@settings(max_examples=examples(ms=6))
@given(schedules(120))
def test_random_schedules_match_real_threads(schedule: dict[int, int]) -> None:
    for program in (ping_pong, broadcast, one_wakes):
        assert (
            run(lambda c: program(c.sync), schedule).value == program_results[program]  # noqa: B023
        )


program_results = {
    ping_pong: (0, 1, 0, 1),
    broadcast: ("a", "b"),
    one_wakes: ("first", "second"),
}


def test_unsupported_primitive_raises() -> None:
    sync = Scheduler.sync
    with pytest.raises(
        AttributeError, match="Barrier: not under the scheduler's control"
    ):
        _ = sync.Barrier
    with pytest.raises(AttributeError, match="PriorityQueue: not under"):
        _ = sync.PriorityQueue
    with pytest.raises(AttributeError, match="has no attribute 'Lokc'"):
        _ = sync.Lokc
    assert sync.get_native_id() == threading.get_native_id()
    assert sync.Empty is queue.Empty


def test_locks_are_free_after_run() -> None:
    kept: list[Any] = []

    def program(c: Scheduler) -> None:
        kept[:] = locks = [c.sync.Lock(), c.sync.RLock()]

        def hold() -> None:
            with locks[0], locks[1]:
                c.sync.Event().wait()

        c.spawn("holds", hold)

    assert attempt(program).stuck
    for lock in kept:
        assert lock.acquire(blocking=False)
        lock.release()
        with pytest.raises(RuntimeError, match="release un"):
            lock.release()
