"""Descriptors for private attributes of torch's scaler, which read and write the state of ampsim's."""

from collections.abc import Callable
from typing import Any


class Name:
    """An attribute of torch's scaler, read and written by methods.

    It is a plain attribute of a disabled scaler, and before `__init__`, where a subclass may set it.
    """

    def __init__(self, read: Callable[[Any], Any], write: Callable[[Any, Any], None]) -> None:
        self._read, self._write = read, write

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, scaler: Any, owner: type) -> Any:
        if scaler is None:
            return self
        if _is_made(scaler):
            return self._read(scaler)
        if self._name in vars(scaler):
            return vars(scaler)[self._name]
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}")

    def __set__(self, scaler: Any, value: Any) -> None:
        if _is_made(scaler):
            self._write(scaler, value)
        else:
            vars(scaler)[self._name] = value


def _is_made(scaler: Any) -> bool:
    """Return whether `__init__` has run and the scaler is enabled."""
    return "_owners" in vars(scaler) and "_rule" in vars(scaler)


def constant(name: str) -> Any:
    """Return a descriptor for a constant of the scaler's rule."""

    def read(scaler: Any) -> Any:
        return getattr(scaler._rule, name)  # noqa: SLF001

    def write(scaler: Any, value: Any) -> None:
        scaler._set_constant(name, value)  # noqa: SLF001

    return Name(read, write)


class NotMade:
    """Raises a clear error if a subclass does not call ``GradScaler.__init__``."""

    def __get__(self, scaler: Any, owner: type) -> Any:
        if scaler is None:
            return self
        raise AttributeError(
            f"{owner.__name__} was created without GradScaler.__init__; call super().__init__(...) instead of "
            "setting torch's attributes"
        )
