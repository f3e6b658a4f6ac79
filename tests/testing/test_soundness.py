"""The conductor against a model: for random small programs, the outcomes it explores are all there are.

The model is an interpreter of programs in which every operation is atomic and any task may go next. It knows
nothing of threads, switch points or preemptions, and a deadlock is an outcome like any other.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim.testing.conductor.runs import Conductor, attempt

OPS = ("read", "write", "acquire", "release", "try", "put", "get", "look", "set", "clear", "wait", "is_set", "timed")
Source = tuple[tuple[str, ...], ...]  # one row of operations a task
Outcome = tuple[tuple[Any, ...], bool]  # what each task noted, and whether it was a deadlock


class Model(NamedTuple):
    """All there is to know between two operations."""

    at: tuple[int, ...]  # per task: operations done
    notes: tuple[tuple[Any, ...], ...]
    cell: int = 0
    owner: int | None = None
    queue: tuple[int, ...] = ()
    flag: bool = False


def moves(source: Source, state: Model, task: int) -> Iterator[Model]:
    """What a task's next operation may lead to: nothing while it waits, two things if it has a timeout."""
    op = source[task][state.at[task]]
    done = state._replace(at=(*state.at[:task], state.at[task] + 1, *state.at[task + 1 :]))

    def noting(value: Any, after: Model = done) -> Model:
        notes = (*after.notes[:task], (*after.notes[task], value), *after.notes[task + 1 :])
        return after._replace(notes=notes)

    simple: dict[str, Callable[[], Model]] = {
        "read": lambda: noting(state.cell),
        "write": lambda: done._replace(cell=state.at[task] * 10 + task + 1),
        "put": lambda: done._replace(queue=(*state.queue, task)),
        "look": lambda: noting(len(state.queue)),
        "set": lambda: done._replace(flag=True),
        "clear": lambda: done._replace(flag=False),
        "is_set": lambda: noting(state.flag),
        "try": lambda: noting(True, done._replace(owner=task)) if state.owner is None else noting(False),
        "release": lambda: done._replace(owner=None) if state.owner == task else done,
    }
    if op in simple:
        yield simple[op]()
    elif op == "acquire" and state.owner is None:
        yield done._replace(owner=task)
    elif op == "get" and state.queue:
        yield noting(state.queue[0], done._replace(queue=state.queue[1:]))
    elif op == "wait" and state.flag:
        yield done
    elif op == "timed":
        yield noting(state.flag)


def by_the_model(source: Source) -> set[Outcome]:
    outcomes, seen = set(), set()
    waiting = [Model((0,) * len(source), ((),) * len(source))]
    while waiting:
        state = waiting.pop()
        if state in seen:
            continue
        seen.add(state)
        alive = [task for task, row in enumerate(source) if state.at[task] < len(row)]
        after = [new for task in alive for new in moves(source, state, task)]
        waiting += after
        if not after:
            outcomes.add((state.notes, bool(alive)))
    return outcomes


class Cell:
    value = 0


class Shared:
    """What the tasks of one run work on; each operation under its name."""

    def __init__(self, c: Conductor) -> None:
        c.watch(Cell, "value")
        self.cell, self.lock, self.queue, self.event = Cell(), c.sync.Lock(), c.sync.Queue(), c.sync.Event()
        self.notes: dict[str, Callable[[], Any]] = {  # their results are noted
            "read": lambda: self.cell.value,
            "try": lambda: self.lock.acquire(blocking=False),
            "get": self.queue.get,
            "look": self.queue.qsize,
            "is_set": self.event.is_set,
            "timed": lambda: self.event.wait(1.0),
        }
        self.acts: dict[str, Callable[[], Any]] = {
            "acquire": self.lock.acquire,
            "set": self.event.set,
            "clear": self.event.clear,
            "wait": self.event.wait,
        }

    def do(self, op: str, task: int, at: int, notes: list[Any]) -> None:
        if op in self.notes:
            notes.append(self.notes[op]())
        elif op == "write":
            self.cell.value = at * 10 + task + 1
        elif op == "put":
            self.queue.put(task)
        elif op != "release":
            self.acts[op]()
        elif self.lock.owner is not None and self.lock.owner.name == f"task {task}":
            self.lock.release()


def compiled(source: Source, notes: list[list[Any]]) -> Callable[[Conductor], None]:
    def program(c: Conductor) -> None:
        shared = Shared(c)
        notes[:] = [[] for _ in source]

        def body(task: int) -> None:
            for at, op in enumerate(source[task]):
                shared.do(op, task, at, notes[task])

        for task in range(len(source)):
            c.spawn(f"task {task}", body, task)

    return program


def by_the_conductor(source: Source) -> set[Outcome]:
    """Every schedule, however many preemptions it takes."""
    notes: list[list[Any]] = []
    program = compiled(source, notes)
    outcomes = set()
    waiting: list[dict[int, int]] = [{}]
    while waiting:
        schedule = waiting.pop()
        done = attempt(program, schedule)
        assert not done.errors
        outcomes.add((tuple(map(tuple, notes)), done.stuck is not None))
        last = max(schedule, default=-1)
        for step, options, _ in done.decisions:
            waiting += [{**schedule, step: choice} for choice in range(1, options) if step > last]
    return outcomes


ops = st.sampled_from(OPS)
rows = st.lists(ops, min_size=1, max_size=3).map(tuple)
deep = os.environ.get("AMPSIM_DEEP") == "1"


@settings(max_examples=2000 if deep else 40)
@given(st.tuples(rows, rows))
def test_the_outcomes_are_those_of_the_model(source: Source) -> None:
    assert by_the_conductor(source) == by_the_model(source)


@pytest.mark.parametrize(
    "source",
    [
        (("acquire", "write", "release"), ("try", "read")),
        (("acquire", "put", "release"), ("get", "try")),
        (("acquire", "set", "release", "acquire"), ("wait", "try")),
        (("try", "wait"), ("acquire", "set")),
        (("timed", "set"), ("timed", "set")),
        (("put", "clear", "wait"), ("get", "set")),
    ],
)
def test_these_too(source: Source) -> None:
    outcomes = by_the_conductor(source)
    assert outcomes == by_the_model(source)
    assert len(outcomes) > 1
