"""A scaler's constants, with torch's getters and setters."""

from typing import Any

from ampsim.core.machine import Rule
from ampsim.torch import config
from ampsim.torch.threads.launcher import Worker


class Constants:
    """The part of a GradScaler that holds the `Rule`; torch's six methods, in order with updates.

    On a disabled scaler they do what torch's do: a setter keeps any value, a getter knows only what was set.
    """

    _enabled: bool
    _exact_torch: bool
    _rule: Rule
    _worker: Worker

    def synchronize(self) -> None:
        raise NotImplementedError

    def _constant(self, name: str, up_to_date: bool) -> Any:
        if not self._enabled:
            return getattr(self, f"_{name}")
        if up_to_date:
            self.synchronize()
        return getattr(self._rule, name)

    def _set_constant(self, name: str, value: Any) -> None:
        if not self._enabled:
            setattr(self, f"_{name}", value)
            return
        self._changed(name, value)  # refuses here and now

        def change() -> None:
            self._rule = self._changed(name, value)

        if self._worker.here():
            change()
        else:
            self._worker.send(change)

    def _changed(self, name: str, value: Any) -> Rule:
        return config.changed(self._rule, exact_torch=self._exact_torch, **{name: value})

    def get_growth_factor(self, up_to_date: bool = False) -> float:
        """The growth factor; `up_to_date` waits for changes still on their way."""
        return self._constant("growth_factor", up_to_date)  # type: ignore[no-any-return]

    def get_backoff_factor(self, up_to_date: bool = False) -> float:
        """The backoff factor; `up_to_date` waits for changes still on their way."""
        return self._constant("backoff_factor", up_to_date)  # type: ignore[no-any-return]

    def get_growth_interval(self, up_to_date: bool = False) -> int:
        """The growth interval; `up_to_date` waits for changes still on their way."""
        return self._constant("growth_interval", up_to_date)  # type: ignore[no-any-return]

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the growth factor, in order with updates: on the optimizer's thread where there is one."""
        self._set_constant("growth_factor", new_factor)

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the backoff factor, in order with updates: on the optimizer's thread where there is one."""
        self._set_constant("backoff_factor", new_factor)

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the growth interval, in order with updates: on the optimizer's thread where there is one."""
        self._set_constant("growth_interval", new_interval)
