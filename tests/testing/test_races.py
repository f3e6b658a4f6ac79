"""Races planted in small pipelines: each one is found in two ways, and its cure passes every
schedule.

They are the shapes in which an asynchronous loss scaler goes wrong. None of them shows up reliably
on real threads: in 10,000 runs each, three of the first four failed at most twice.
"""

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from ampsim.testing.scheduler import (
    DeadlockError,
    FailingScheduleError,
    Program,
    Scheduler,
    attempt,
    explore,
    run,
)
from tests.testing.programs import together


def shared_scale(*, cured: bool) -> Program:
    """The optimizer thread unscales by the scale in force, not by the one the loss was multiplied
    by.
    """

    def program(c: Scheduler) -> None:
        state = {"scale": 8.0}
        gradients = c.sync.Queue()
        unscaled = []

        def optimizer() -> None:
            for _ in range(2):
                gradient, scale = gradients.get()
                unscaled.append(gradient / (scale if cured else state["scale"]))

        thread = c.spawn("optimizer", optimizer)
        for _ in range(2):
            gradients.put((3.0 * state["scale"], state["scale"]))
            state["scale"] /= 2.0
        thread.join()
        assert unscaled == [3.0, 3.0]

    return program


def ring(*, cured: bool) -> Program:
    """A slot of the ring of versions is given back before it was read for the last time."""

    def program(c: Scheduler) -> None:
        versions = [-1, -1]
        free, filled = c.sync.Queue(), c.sync.Queue()
        read = []
        for slot in range(2):
            free.put(slot)

        def optimizer() -> None:
            for _ in range(4):
                slot = filled.get()
                if not cured:
                    free.put(slot)
                c.point("use")
                read.append(versions[slot])
                if cured:
                    free.put(slot)

        thread = c.spawn("optimizer", optimizer)
        for i in range(4):
            free.get()
            versions[i % 2] = i
            filled.put(i % 2)
        thread.join()
        assert read == [0, 1, 2, 3]

    return program


def event_protocol(*, cured: bool) -> Program:
    """The event that says "done" is cleared after the work was launched, so that it may clear the
    answer.
    """

    def program(c: Scheduler) -> None:
        work, done = c.sync.Queue(), c.sync.Event()

        def optimizer() -> None:
            for _ in range(2):
                work.get()
                done.set()

        c.spawn("optimizer", optimizer)
        for i in range(2):
            if cured:
                done.clear()
            work.put(i)
            if not cured:
                done.clear()
            done.wait()

    return program


def lazy_init(*, cured: bool) -> Program:
    """Two threads find that the scale does not exist yet, and both make it."""

    class Lazy:
        scale: list[int] | None = None

    def program(c: Scheduler) -> None:
        c.watch(Lazy, "scale")
        scaler, lock = Lazy(), c.sync.Lock()
        seen = []

        def use() -> None:
            with lock if cured else nullcontext():
                if scaler.scale is None:
                    scaler.scale = []
            seen.append(scaler.scale)

        together(c, use, use)
        assert seen[0] is seen[1], "two scales"

    return program


def lost_wake_up(*, cured: bool) -> Program:
    """What is waited for happens between looking and waiting."""

    class Box:
        full = False

    def program(c: Scheduler) -> None:
        c.watch(Box, "full")
        box, condition = Box(), c.sync.Condition()

        def fill() -> None:
            if not cured:
                box.full = True  # outside the lock, so that it may fall between looking and waiting
            with condition:
                box.full = True
                condition.notify()

        def empty() -> None:
            if cured:
                with condition:
                    condition.wait_for(lambda: box.full)
            elif not box.full:
                with condition:
                    condition.wait()

        c.spawn("empty", empty)
        c.spawn("fill", fill)

    return program


RACES = [shared_scale, ring, event_protocol, lazy_init, lost_wake_up]
Race = Callable[..., Program]


def fails(program: Program, schedule: object) -> bool:
    return attempt(program, schedule).failure is not None


@pytest.mark.parametrize("race", RACES)
def test_exploring_finds_race_with_one_preemption(race: Race) -> None:
    with pytest.raises(FailingScheduleError) as found:
        explore(race(cured=False), preemptions=1)
    assert found.value.run.preemptions <= 1
    assert len(found.value.schedule) <= 1  # the shortest schedules come first
    assert fails(race(cured=False), found.value.schedule)


@pytest.mark.parametrize("race", RACES)
def test_fixed_program_passes_every_schedule(race: Race) -> None:
    seen = explore(race(cured=True), preemptions=2)
    assert seen.exhausted
    assert seen.by_preemptions[1] > seen.by_preemptions[0] > 0


@pytest.mark.parametrize("race", [ring, event_protocol, lazy_init, lost_wake_up])
def test_race_needs_a_preemption(race: Race) -> None:
    explore(race(cured=False), preemptions=0)


def test_the_message_reproduces_the_failure() -> None:
    with pytest.raises(FailingScheduleError) as found:
        explore(event_protocol(cured=False))
    line = next(
        line for line in str(found.value).splitlines() if line.startswith("replay: ")
    )
    replayed = line.removeprefix("replay: ")
    with pytest.raises(DeadlockError):
        eval(replayed, {"run": run, "program": event_protocol(cured=False)})  # noqa: S307
