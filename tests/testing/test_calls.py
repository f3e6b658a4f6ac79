"""One thread calls `conductor.sync` and the real thing in any order: same results, refusals and texts."""

import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim.testing.conductor.runs import run
from tests.examples import examples

REAL: Any = SimpleNamespace(**{**vars(threading), **vars(queue)})


def outcome_of(call: Callable[[], Any]) -> Any:
    """Return what a call returned, or the type and text of what it raised."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001, RUF100  it is the result
        return f"{type(error).__name__}: {error}"


CALLS: dict[str, tuple[Callable[[Any], Any], dict[str, Callable[[Any], Any]]]] = {
    "Lock": (
        lambda s: s.Lock(),
        {
            "try": lambda x: x.acquire(blocking=False),
            "zero": lambda x: x.acquire(timeout=0),
            "timed": lambda x: x.acquire(timeout=1e-6),
            "release": lambda x: x.release(),
            "locked": lambda x: x.locked(),
            "contradiction": lambda x: x.acquire(blocking=False, timeout=1),
            "past": lambda x: x.acquire(timeout=-2),
        },
    ),
    "RLock": (
        lambda s: s.RLock(),
        {
            "acquire": lambda x: x.acquire(),
            "try": lambda x: x.acquire(blocking=False),
            "release": lambda x: x.release(),
            "with": lambda x: x.__enter__(),
        },
    ),
    "Condition": (
        lambda s: s.Condition(),
        {
            "acquire": lambda x: x.acquire(),
            "release": lambda x: x.release(),
            "wait": lambda x: x.wait(timeout=1e-6),
            "wait_for": lambda x: x.wait_for(lambda: 0, timeout=0),
            "wait_for_truth": lambda x: x.wait_for(lambda: "yes"),
            "notify": lambda x: x.notify(),
            "notify_all": lambda x: x.notify_all(),
        },
    ),
    "Event": (
        lambda s: s.Event(),
        {
            "set": lambda x: x.set(),
            "clear": lambda x: x.clear(),
            "is_set": lambda x: x.is_set(),
            "wait": lambda x: x.wait(1e-6),
            "wait_0": lambda x: x.wait(0),
        },
    ),
    "Semaphore": (
        lambda s: s.Semaphore(2),
        {
            "try": lambda x: x.acquire(blocking=False),
            "timed": lambda x: x.acquire(timeout=1e-6),
            "release": lambda x: x.release(),
            "release_2": lambda x: x.release(2),
            "release_0": lambda x: x.release(0),
            "contradiction": lambda x: x.acquire(blocking=False, timeout=1),
        },
    ),
    "Queue": (
        lambda s: s.Queue(2),
        {
            "put": lambda x: x.put_nowait("item"),
            "put_timed": lambda x: x.put("other", timeout=1e-6),
            "get": lambda x: x.get_nowait(),
            "get_timed": lambda x: x.get(timeout=1e-6),
            "get_0": lambda x: x.get(timeout=0),
            "past": lambda x: x.get(timeout=-1),
            "sizes": lambda x: (x.qsize(), x.empty(), x.full()),
            "task_done": lambda x: x.task_done(),
        },
    ),
}


@pytest.mark.parametrize("kind", CALLS)
@settings(max_examples=examples(ms=5))
@given(data=st.data())
def test_one_thread_sees_no_difference(kind: str, data: st.DataObject) -> None:
    make, calls = CALLS[kind]
    names = data.draw(st.lists(st.sampled_from(sorted(calls)), max_size=12))

    def results(sync: Any) -> list[Any]:
        thing = make(sync)
        return [outcome_of(lambda: calls[name](thing)) for name in names]  # noqa: B023

    assert run(lambda c: results(c.sync)).value == results(REAL)
