"""The scheduler's promises: what it counts, that it repeats itself, and what it names."""

import os
import re
import subprocess
import sys
from collections import Counter
from math import comb
from pathlib import Path

import pytest
from hypothesis import given, settings

from ampsim.testing import scheduler
from ampsim.testing.scheduler import (
    FailingScheduleError,
    Program,
    Run,
    Scheduler,
    attempt,
    explore,
    run,
)
from tests.examples import examples
from tests.testing.programs import schedules


def walkers(*lengths: int) -> Program:
    """Tasks a, b ... that pass so many points each, and a main task that only starts them."""

    def program(c: Scheduler) -> None:
        def walk(length: int) -> None:
            for i in range(length):
                c.point(str(i))

        for name, length in zip("abc", lengths, strict=False):
            c.spawn(name, walk, length)

    return program


# ---- counting: against a model of threads that is nothing but numbers
# ------------------------------------


def count_schedules(lengths: tuple[int, ...], budget: int) -> Counter[int]:
    """How many schedules of `walkers` have 0, 1 ... `budget` preemptions, by brute force.

    Task 0 is main. It decides once after each start and once when it ends; the others at each point
    and end.
    """
    counts: Counter[int] = Counter()

    def walk(running: int, left: dict[int, int], used: int) -> None:
        left = {**left, running: left[running] - 1}
        if running == 0 and len(left) <= len(lengths):
            left[len(left)] = lengths[len(left) - 1] + 1
        can = [task for task, n in left.items() if n > 0]
        if not can:
            counts[used] += 1
        for task in can:
            cost = used + (left[running] > 0 and task != running)
            if cost <= budget:
                walk(task, left, cost)

    walk(0, {0: len(lengths) + 1}, 0)
    return counts


@pytest.mark.parametrize("lengths", [(1,), (0, 0), (2, 1), (3, 3), (1, 2, 1)])
@pytest.mark.parametrize("budget", [0, 1, 2])
def test_exploring_runs_each_schedule_once(
    lengths: tuple[int, ...], budget: int
) -> None:
    traces: set[object] = set()
    seen = explore(
        walkers(*lengths), preemptions=budget, check=lambda done: traces.add(done.trace)
    )
    expected = count_schedules(lengths, budget)
    assert seen.by_preemptions == tuple(expected[i] for i in range(budget + 1))
    assert len(traces) == sum(seen.by_preemptions)
    assert seen.exhausted


def test_unbounded_exploring_runs_all_interleavings() -> None:
    orders: set[tuple[str, ...]] = set()
    explore(walkers(3, 3), preemptions=99,
            check=lambda done: orders.add(tuple(s.task for s in done.trace if s.op == "point")))  # fmt: skip
    assert len(orders) == comb(6, 3)


# ---- determinism
# ------------------------------------------------------------------------------------------


def busy(c: Scheduler) -> list[str]:
    """Uses most primitives, and a timeout."""
    log: list[str] = []
    queue, lock, event = c.sync.Queue(2), c.sync.RLock(), c.sync.Event()

    def producer() -> None:
        for i in range(3):
            with lock:
                log.append(f"put {i}")
            queue.put(i)
        event.set()

    def consumer(name: str) -> None:
        while not (event.is_set() and queue.empty()):
            try:
                item = queue.get(timeout=1.0)
            except c.sync.Empty:
                log.append(f"{name} empty")
            else:
                with lock:
                    log.append(f"{name} {item}")

    threads = [
        c.spawn("p", producer),
        c.spawn("x", consumer, "x"),
        c.spawn("y", consumer, "y"),
    ]
    for thread in threads:
        thread.join()
    return log


@settings(max_examples=examples(ms=5))
@given(schedules(80))
def test_same_schedule_gives_same_run(schedule: dict[int, int]) -> None:
    first, second = attempt(busy, schedule), attempt(busy, schedule)
    assert first.failure is None
    assert (first.trace, first.value, first.schedule) == (
        second.trace,
        second.value,
        second.schedule,
    )


@settings(max_examples=examples(ms=8))
@given(schedules(80))
def test_recorded_schedule_reproduces_run(schedule: dict[int, int]) -> None:
    drawn = attempt(busy, schedule)
    replayed = attempt(busy, drawn.schedule)
    assert (replayed.trace, replayed.schedule) == (drawn.trace, drawn.schedule)


def test_neither_hash_order_nor_addresses_matter() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); import tests.testing.test_scheduler as t;"
        "print(*t.attempt(t.busy, {i: 1 for i in range(0, 60, 7)}).trace, sep='|')"
    )
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    here = attempt(busy, dict.fromkeys(range(0, 60, 7), 1)).trace
    assert done.stdout.strip() == "|".join(map(str, here))
    assert len(here) > 20


def test_stateful_program_raises() -> None:
    runs = []

    def program(c: Scheduler) -> None:
        runs.append(None)
        walkers(*([3, 3] if len(runs) == 1 else [0]))(c)

    with pytest.raises(RuntimeError, match=r"depends on nothing but the schedule"):
        explore(program)


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or os.cpu_count() == 1,
    reason="there is one core",
)
def test_one_core_restores_affinity() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        every = os.sched_getaffinity(0)
        with pytest.raises(KeyError, match="1 core"), scheduler.one_core():
            raise KeyError(f"{len(os.sched_getaffinity(0))} core")
        assert os.sched_getaffinity(0) == every
    finally:
        os.sched_setaffinity(0, before)


def test_schedule_error_names_the_schedule() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run(walkers(2, 2), lambda step, names: 1 // 0)
    assert "in task 'the schedule'" in caught.value.__notes__[0]


# ---- names
# ----------------------------------------------------------------------------------------------------


def test_failing_check_is_reported() -> None:
    def check(done: Run) -> None:
        assert done.preemptions == 0, "too lively"

    with pytest.raises(
        FailingScheduleError, match="AssertionError in the check: too lively"
    ) as caught:
        explore(walkers(1, 1), check=check)
    assert caught.value.run.preemptions == 1


def test_duplicate_thread_names_are_numbered() -> None:
    seen: list[bool] = []

    def program(c: Scheduler) -> None:
        def start() -> None:
            seen.append(c.sync.Thread(target=c.sync.Event().wait).daemon)

        for daemon in (False, True):
            thread = c.sync.Thread(target=start, name="twin", daemon=daemon)
            thread.start()
            thread.join()

    assert {step.task for step in run(program).trace} == {"main", "twin", "twin-2"}
    assert seen == [False, True]


def test_deadlock_report_shows_lock_holders() -> None:
    def program(c: Scheduler) -> None:
        lock = c.sync.Lock()

        def hold() -> None:
            with lock:
                c.sync.Event().wait()

        c.spawn("holder", hold)
        c.point("before")
        lock.acquire()

    text = str(attempt(program, {1: 1}).stuck)
    assert re.search(r"holder: .* holds Lock-1$", text, re.M)
    assert re.search(r"main: .* acquire Lock-1 \(held by holder\), holds nothing", text)


def test_thread_exit_is_no_failure() -> None:
    def program(c: Scheduler) -> scheduler.sync.Thread:
        c.spawn("leaves", sys.exit, 3).join()
        return c.sync.Thread(target=print, name="late")

    done = attempt(program)
    assert done.failure is None
    with pytest.raises(RuntimeError, match="'late'"):
        done.value.start()


def test_either_timeout_may_fire_first() -> None:
    def program(c: Scheduler) -> list[str]:
        order: list[str] = []
        event = c.sync.Event()

        def wait(name: str) -> None:
            order.append(f"{name} begins")
            event.wait(1.0)
            order.append(f"{name} ends")

        for task in [c.spawn(name, wait, name) for name in "ab"]:
            task.join()
        return order

    orders = set()
    explore(program, preemptions=0, check=lambda done: orders.add(tuple(done.value)))
    begins = [("a begins", "b begins"), ("b begins", "a begins")]
    ends = [("a ends", "b ends"), ("b ends", "a ends")]
    assert {begin + end for begin in begins for end in ends} <= orders
