"""What tests share: the real thing beside `scheduler.sync`, and small programs."""

import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from ampsim.testing.scheduler import Scheduler, explore

REAL: Any = SimpleNamespace(**{**vars(threading), **vars(queue)})


def schedules(steps: int) -> st.SearchStrategy[dict[int, int]]:
    """Draw schedules: at most 8 of the first steps choose another task than the first."""
    return st.dictionaries(st.integers(0, steps), st.integers(1, 3), max_size=8)


def outcome_of(call: Callable[[], Any]) -> Any:
    """Return what a call returned, or the type and text of what it raised."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001, RUF100  it is the result
        return f"{type(error).__name__}: {error}"


def outcomes(program: Callable[[Scheduler], Any], **options: Any) -> set[Any]:
    """Return everything that a program returns under some schedule."""
    seen: set[Any] = set()
    explore(program, check=lambda done: seen.add(done.value), **options)
    return seen


def nothing_special(c: Scheduler) -> None:
    c.spawn("worker", c.point, "here")


def together(c: Scheduler, *bodies: Callable[[], object]) -> None:
    """Run a task per body, named a, b and so on, to their ends."""
    for thread in [
        c.spawn(name, body) for name, body in zip("abc", bodies, strict=False)
    ]:
        thread.join()
