"""Unmodified code under the scheduler: watched attributes and patched modules."""

import queue
import threading
import time
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from ampsim.testing.scheduler import (
    FailingScheduleError,
    Program,
    Scheduler,
    attempt,
    explore,
    run,
    sync,
)
from tests.testing.programs import together


class Plain:
    """As somebody would write it who never thought of threads."""

    default = 5

    def __init__(self) -> None:
        self.n = 0


class Slots:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


class Property:
    def __init__(self) -> None:
        self._n = 0

    @property
    def n(self) -> int:
        return self._n

    @n.setter
    def n(self, value: int) -> None:
        self._n = value


@dataclass
class Data:
    n: int = 0


def add(counter: Any) -> None:
    counter.n += 1


def adding(kind: Any, *watched: str) -> Program:
    def program(c: Scheduler) -> None:
        if watched:
            c.watch(kind, *watched)
        counter = kind()
        together(c, partial(add, counter), partial(add, counter))
        assert counter.n == 2, "an addition was lost"

    return program


@pytest.mark.parametrize("kind", [Plain, Slots, Property, Data])
def test_race_on_plain_attribute_is_found(kind: Any) -> None:
    before = dict(vars(kind))
    with pytest.raises(FailingScheduleError, match="an addition was lost") as found:
        explore(adding(kind, "n"), preemptions=1)
    assert f"read {kind.__name__}.n" in str(found.value)
    assert dict(vars(kind)) == before


def test_watch_requires_names() -> None:
    with pytest.raises(TypeError, match="names of attributes"):
        run(lambda c: c.watch(Plain))


def test_unwatched_code_is_atomic() -> None:
    assert explore(adding(Plain), preemptions=2).exhausted


def test_a_watched_attribute_behaves_as_before() -> None:
    def program(c: Scheduler) -> None:
        thing = Plain()  # made before it is watched
        c.watch(Plain, "n", "default", "absent")
        assert (thing.n, thing.default, Plain.default) == (0, 5, 5)
        thing.default = 6
        assert (thing.default, vars(thing)["default"], Plain.default) == (6, 6, 5)
        del thing.default
        assert thing.default == 5
        with pytest.raises(
            AttributeError, match="'Plain' object has no attribute 'absent'"
        ):
            _ = thing.absent  # type: ignore[attr-defined]
        with pytest.raises(AttributeError):
            del thing.default
        assert not hasattr(thing, "absent")

    ops = [(step.op, step.subject) for step in run(program).trace]
    assert ops[:2] == [("read", "Plain.n"), ("read", "Plain.default")]
    assert ("delete", "Plain.default") in ops


@pytest.mark.parametrize(
    "kind", [Plain, type("Child", (Plain,), {})]
)  # which inherits its default
def test_failure_restores_watched_class(kind: type) -> None:
    before = dict(vars(kind))

    def program(c: Scheduler) -> None:
        c.watch(kind, "n", "default")
        c.sync.Event().wait()

    assert attempt(program).stuck
    assert dict(vars(kind)) == before


# ---- modules
# ----------------------------------------------------------------------------------------------------

UNMODIFIED = '''
import queue as q
import threading
import time
from threading import Event, Lock as Mutex
from queue import Queue

class Worker:
    """Clears the event after launching: the answer may come first."""
    def __init__(self):
        self.jobs, self.done, self.lock, self.other = Queue(), Event(), Mutex(), q.SimpleQueue()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            self.jobs.get()
            with self.lock:
                self.done.set()

    def call(self):
        self.jobs.put(1)
        self.done.clear()
        self.done.wait()
        time.sleep(1e6)
        return threading.current_thread().name
'''


def test_module_is_patched_during_run() -> None:
    module = ModuleType("unmodified")
    exec(UNMODIFIED, vars(module))  # noqa: S102
    before = dict(vars(module))

    def program(c: Scheduler) -> str:
        assert set(c.patch(module)) == {
            "q",
            "threading",
            "time",
            "Event",
            "Mutex",
            "Queue",
        }
        assert module.Mutex is sync.Lock
        assert module.time.monotonic is time.monotonic
        name: str = module.Worker().call()
        return name

    assert run(program).value == "main"
    assert dict(vars(module)) == before
    with pytest.raises(FailingScheduleError, match="Deadlock"):
        explore(program, preemptions=1)
    assert (module.threading, module.q) == (threading, queue)
