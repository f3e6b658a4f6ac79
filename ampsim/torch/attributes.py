"""The attributes of torch's scaler, which ours does not keep: what is read and written is what they stand for."""

from collections.abc import Callable
from typing import Any


class Name:
    """One of torch's attributes, read and written by methods; a plain one where it was made disabled, as torch's is.

    And before `__init__`, where a subclass may set it.
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
    """Tell whether a scaler was made enabled and its `__init__` has run."""
    return "_owners" in vars(scaler) and "_rule" in vars(scaler)


def constant(name: str) -> Any:
    """Make an attribute that is a constant of the scaler's rule."""

    def read(scaler: Any) -> Any:
        return getattr(scaler._rule, name)  # noqa: SLF001

    def write(scaler: Any, value: Any) -> None:
        scaler._set_constant(name, value)  # noqa: SLF001

    return Name(read, write)


class NotMade:
    """An attribute that only `__init__` makes, of a subclass that calls none of ours."""

    def __get__(self, scaler: Any, owner: type) -> Any:
        if scaler is None:
            return self
        raise AttributeError(
            f"{owner.__name__} was made without GradScaler.__init__: expected it to run; call super().__init__(...) in "
            "place of setting torch's attributes"
        )
