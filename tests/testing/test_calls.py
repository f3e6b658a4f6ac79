"""One thread calls `scheduler.sync` and the real thing in any order: same results, refusals and
texts.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim.testing.scheduler import run
from tests.examples import examples
from tests.testing.programs import REAL, outcome_of

CALLS = {
    "Lock()": [
        *(
            "acquire(blocking=False)",
            "acquire(timeout=0)",
            "acquire(timeout=1e-6)",
            "release()",
            "locked()",
        ),
    ],
    "RLock()": ["acquire()", "acquire(blocking=False)", "release()", "__enter__()"],
    "Condition()": [
        *("acquire()", "release()", "notify()", "notify_all()"),
        *(
            "wait(timeout=1e-6)",
            "wait_for(lambda: 0, timeout=0)",
            "wait_for(lambda: 'yes')",
        ),
    ],
    "Event()": ["set()", "clear()", "is_set()", "wait(1e-6)", "wait(0)"],
    "Queue()": [
        "put('item')",
        "get_nowait()",
        "get(timeout=1e-6)",
        "get(timeout=0)",
        "qsize()",
        "empty()",
    ],
}


@cache
def call_of(text: str) -> Callable[[Any], Any]:
    return eval(f"lambda it: it.{text}")  # noqa: S307


@pytest.mark.parametrize("kind", CALLS)
@settings(max_examples=examples(ms=5))
@given(data=st.data())
def test_single_thread_matches_real_primitives(kind: str, data: st.DataObject) -> None:
    calls = data.draw(st.lists(st.sampled_from(CALLS[kind]), max_size=12))

    def results(sync: Any) -> list[Any]:
        thing = call_of(kind)(sync)
        return [outcome_of(partial(call_of(call), thing)) for call in calls]

    assert run(lambda c: results(c.sync)).value == results(REAL)
