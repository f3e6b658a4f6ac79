"""Switch points in code that knows nothing of the scheduler: attributes and module names.

`Scheduler` puts these in place, and takes them back when the run ends.
"""

import queue
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ampsim.testing.scheduler import sync
from ampsim.testing.scheduler.task_runner import TaskRunner

# Special method -> the operation in a trace.
ACCESS = {
    "__getattribute__": "read",
    "__setattr__": "write",
    "__delattr__": "delete",
}


def switching(
    task_runner: TaskRunner, owner: type, names: tuple[str, ...], method: str
) -> Callable[..., Any]:
    """Return a method of `ACCESS` that lets others run before it accesses one of these names."""
    access = getattr(owner, method)

    def switch_and_access(instance: object, name: str, *value: object) -> Any:
        if name in names:
            task_runner.switch(ACCESS[method], f"{owner.__name__}.{name}")
        return access(instance, name, *value)

    return switch_and_access


def _stand_ins() -> dict[int, object]:
    """Return what takes the place of what, by the latter's id: not everything in a namespace is
    hashable.
    """
    slow = SimpleNamespace(**{**vars(time), "sleep": sync.sleep})
    pairs: list[tuple[object, object]] = [
        (threading, sync),
        (queue, sync),
        (time, slow),
        (time.sleep, sync.sleep),
    ]
    for home in (threading, queue):
        public = [
            name
            for name in dir(home)
            if name in vars(sync) and not name.startswith("_")
        ]
        pairs += [(getattr(home, name), getattr(sync, name)) for name in public]
    return {id(real): ours for real, ours in pairs if real is not ours}


STAND_INS = _stand_ins()  # once: a scaler's classes are patched again for each schedule
