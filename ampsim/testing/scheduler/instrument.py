"""Switch points in code that knows nothing of the scheduler: attributes and module names.

Each of these is taken back when the run ends.
"""

import queue
import threading
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from ampsim.testing.scheduler import sync
from ampsim.testing.scheduler.task_runner import TaskRunner

_MISSING = object()


_ACCESS = {"__getattribute__": "read", "__setattr__": "write", "__delattr__": "delete"}


def watch_attributes(
    task_runner: TaskRunner, owner: type, names: tuple[str, ...]
) -> None:
    """Make each access to these attributes of a class's instances a switch point, until the run
    ends.
    """
    if not names:
        raise TypeError(
            f"watch({owner.__name__}): expected names of attributes, such as *vars(an_instance)"
        )
    for method, operation in _ACCESS.items():
        access = _switching(
            task_runner, owner, names, getattr(owner, method), operation
        )
        replace(task_runner, owner, method, access)


def _switching(
    task_runner: TaskRunner,
    owner: type,
    names: tuple[str, ...],
    access: Callable[..., Any],
    operation: str,
) -> Callable[..., Any]:
    def switch_and_access(instance: object, name: str, *value: object) -> Any:
        if name in names:
            task_runner.switch(operation, f"{owner.__name__}.{name}")
        return access(instance, name, *value)

    return switch_and_access


def replace(task_runner: TaskRunner, owner: object, name: str, value: object) -> None:
    """Set an attribute of a class or module until the run ends."""
    before = vars(owner).get(name, _MISSING)
    if before is _MISSING:
        task_runner.cleanup.callback(delattr, owner, name)
    else:
        task_runner.cleanup.callback(setattr, owner, name, before)
    setattr(owner, name, value)


def patch(task_runner: TaskRunner, module: ModuleType) -> tuple[str, ...]:
    """Give a module this package's `threading`, `queue` and `time.sleep` until the run ends.

    Replaced is whatever in the module's namespace *is* one of them, under any name; returns the
    names. Locks that the module made when it was imported stay real: patch, then reload the module
    or create the locks again.
    """
    patched = []
    for name, value in [*vars(module).items()]:
        ours = _STAND_INS.get(id(value))
        if ours is not None:
            replace(task_runner, module, name, ours)
            patched.append(name)
    return tuple(patched)


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


_STAND_INS = (
    _stand_ins()
)  # once: a scaler's classes are patched again for each schedule
