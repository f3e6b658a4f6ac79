"""The scheduler against a model: for random small programs, the outcomes it explores are all there
are.

The model is an interpreter of programs in which every operation is atomic and any task may go next.
It knows nothing of threads, switch points or preemptions, and a deadlock is an outcome like any
other.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim.testing.scheduler import Scheduler, attempt

OPS = (
    "read",
    "write",
    "acquire",
    "release",
    "try",
    "put",
    "get",
    "look",
    "set",
    "clear",
    "wait",
    "is_set",
    "timed",
)
NOTED = {
    "read",
    "try",
    "get",
    "look",
    "is_set",
    "timed",
}  # operations whose results are outcomes
Source = tuple[tuple[str, ...], ...]  # one row of operations a task
Outcome = tuple[
    tuple[Any, ...], bool
]  # what each task noted, and whether it was a deadlock


class Model(NamedTuple):
    """All there is to know between two operations."""

    at: tuple[int, ...]  # per task: operations done
    notes: tuple[tuple[Any, ...], ...]
    cell: int = 0
    owner: int | None = None
    queue: tuple[int, ...] = ()
    flag: bool = False


def moves(source: Source, state: Model, task: int) -> Iterator[Model]:
    """What a task's next operation may lead to: nothing while it waits, two things if it has a
    timeout.
    """
    op = source[task][state.at[task]]
    done = state._replace(
        at=(*state.at[:task], state.at[task] + 1, *state.at[task + 1 :])
    )

    def noting(value: Any, after: Model = done) -> Model:
        notes = (
            *after.notes[:task],
            (*after.notes[task], value),
            *after.notes[task + 1 :],
        )
        return after._replace(notes=notes)

    simple: dict[str, Callable[[], Model]] = {
        "read": lambda: noting(state.cell),
        "write": lambda: done._replace(cell=state.at[task] * 10 + task + 1),
        "put": lambda: done._replace(queue=(*state.queue, task)),
        "look": lambda: noting(len(state.queue)),
        "set": lambda: done._replace(flag=True),
        "clear": lambda: done._replace(flag=False),
        "is_set": lambda: noting(state.flag),
        "try": lambda: (
            noting(True, done._replace(owner=task))
            if state.owner is None
            else noting(False)
        ),
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


def operations(c: Scheduler) -> dict[str, Callable[[int, int], Any]]:
    """What the tasks of one run work on, as functions of the task and of how many operations it has
    done.
    """
    c.watch(Cell, "value")
    cell, lock, queue, event = Cell(), c.sync.Lock(), c.sync.Queue(), c.sync.Event()
    return {
        "read": lambda task, at: cell.value,
        "write": lambda task, at: setattr(cell, "value", at * 10 + task + 1),
        "acquire": lambda task, at: lock.acquire(),
        "release": lambda task, at: (
            lock.owner and lock.owner.name == f"task {task}" and lock.release()
        ),
        "try": lambda task, at: lock.acquire(blocking=False),
        "put": lambda task, at: queue.put(task),
        "get": lambda task, at: queue.get(),
        "look": lambda task, at: queue.qsize(),
        "set": lambda task, at: event.set(),
        "clear": lambda task, at: event.clear(),
        "wait": lambda task, at: event.wait(),
        "is_set": lambda task, at: event.is_set(),
        "timed": lambda task, at: event.wait(1.0),
    }


def compiled(source: Source, notes: list[list[Any]]) -> Callable[[Scheduler], None]:
    def program(c: Scheduler) -> None:
        perform = operations(c)
        notes[:] = [[] for _ in source]

        def body(task: int) -> None:
            for at, op in enumerate(source[task]):
                result = perform[op](task, at)
                if op in NOTED:
                    notes[task].append(result)

        for task in range(len(source)):
            c.spawn(f"task {task}", body, task)

    return program


def by_the_scheduler(source: Source) -> set[Outcome]:
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
            waiting += [
                {**schedule, step: choice}
                for choice in range(1, options)
                if step > last
            ]
    return outcomes


ops = st.sampled_from(OPS)
rows = st.lists(ops, min_size=1, max_size=3).map(tuple)
deep = os.environ.get("AMPSIM_DEEP") == "1"


@settings(max_examples=2000 if deep else 15)
@given(st.tuples(rows, rows))
@example((("acquire", "write", "release"), ("try", "read")))
@example((("acquire", "put", "release"), ("get", "try")))
@example((("acquire", "set", "release", "acquire"), ("wait", "try")))
@example((("try", "wait"), ("acquire", "set")))
@example((("timed", "set"), ("timed", "set")))
@example((("put", "clear", "wait"), ("get", "set")))
@example((("look", "look"), ("put",)))
@example((("is_set", "is_set"), ("set", "clear")))
def test_outcomes_match_the_model(source: Source) -> None:
    assert by_the_scheduler(source) == by_the_model(source)
