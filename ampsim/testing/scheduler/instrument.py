"""Switch points in code that knows nothing of the scheduler: attributes and module names.

Each of these is taken back when the run ends.
"""

import inspect
import queue
import threading
import time
from types import ModuleType, SimpleNamespace

from ampsim.testing.scheduler import sync
from ampsim.testing.scheduler.task_runner import TaskRunner

_MISSING = object()


class WatchedAttribute:
    """A data descriptor in front of an attribute: each read, write and deletion is a switch point.

    The value stays where it was, in the instance's ``__dict__`` or in the slot or property behind the name.
    """

    def __init__(self, task_runner: TaskRunner, owner: type, name: str) -> None:
        self._task_runner = task_runner
        self._name = name
        self._label = f"{owner.__name__}.{name}"
        self._behind = inspect.getattr_static(owner, name, _MISSING)

    def __get__(self, instance: object, owner: type | None = None) -> object:
        if instance is None:
            return self if self._behind is _MISSING else self._behind
        self._task_runner.switch("read", self._label)
        if hasattr(type(self._behind), "__set__"):
            return self._behind.__get__(instance, owner)
        if self._name in instance.__dict__:
            return instance.__dict__[self._name]
        if self._behind is _MISSING:
            raise AttributeError(
                f"{type(instance).__name__!r} object has no attribute {self._name!r}"
            )
        return self._behind

    def __set__(self, instance: object, value: object) -> None:
        self._task_runner.switch("write", self._label)
        if hasattr(type(self._behind), "__set__"):
            self._behind.__set__(instance, value)
        else:
            instance.__dict__[self._name] = value

    def __delete__(self, instance: object) -> None:
        self._task_runner.switch("delete", self._label)
        if hasattr(type(self._behind), "__delete__"):
            self._behind.__delete__(instance)
        elif instance.__dict__.pop(self._name, _MISSING) is _MISSING:
            raise AttributeError(self._name)


def watch_attributes(task_runner: TaskRunner, owner: type, names: tuple[str, ...]) -> None:
    """Put a `WatchedAttribute` before each name until the run ends."""
    if not names:
        raise TypeError(
            f"watch({owner.__name__}): expected names of attributes, such as *vars(an_instance)"
        )
    for name in names:
        watched = WatchedAttribute(task_runner, owner, name)
        if callable(watched._behind):  # noqa: SLF001
            raise TypeError(
                f"{owner.__name__}.{name} is a method: expected an attribute that holds a value"
            )
        replace(task_runner, owner, name, watched)


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

    Replaced is whatever in the module's namespace *is* one of them, under any name; returns the names.
    Locks that the module made when it was imported stay real: patch, then reload the module or create the locks again.
    """
    patched = []
    for name, value in [*vars(module).items()]:
        ours = _STAND_INS.get(id(value))
        if ours is not None:
            replace(task_runner, module, name, ours)
            patched.append(name)
    return tuple(patched)


def _stand_ins() -> dict[int, object]:
    """Return what takes the place of what, by the latter's id: not everything in a namespace is hashable."""
    slow = SimpleNamespace(**{**vars(time), "sleep": sync.sleep})
    pairs: list[tuple[object, object]] = [
        (threading, sync),
        (queue, sync),
        (time, slow),
        (time.sleep, sync.sleep),
    ]
    for home in (threading, queue):
        public = [name for name in dir(home) if name in vars(sync) and not name.startswith("_")]
        pairs += [(getattr(home, name), getattr(sync, name)) for name in public]
    return {id(real): ours for real, ours in pairs if real is not ours}


_STAND_INS = _stand_ins()  # once: a scaler's classes are patched again for each schedule
