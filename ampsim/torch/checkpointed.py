"""A scaler's life beyond one process: `state_dict`, pickling, fork."""

import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ampsim.torch.state import saving
from ampsim.torch.state.kinds import ByRule
from ampsim.torch.state.versions import Version
from ampsim.torch.step.records import Ledger, StepReport
from ampsim.torch.threads.iterations import Iterations
from ampsim.torch.threads.register import Ticket


class Checkpointed:
    """The part of a GradScaler that saves its state and loads it."""

    _enabled: bool
    _depth: int
    _kind: ByRule
    _rule: Any
    _first: tuple[Any, ...]
    _iterations: Iterations[Version]
    _ledger: Ledger
    _scaled: Ticket[Version] | None
    _report: StepReport
    _launch: Callable[..., Any] | None
    _sync: Any

    def synchronize(self) -> None:
        raise NotImplementedError

    def _reset(self) -> None:
        raise NotImplementedError

    def _states(self) -> tuple[Any, ...]:
        """The state the next ticket carries, and every newer one."""
        register = self._iterations.register
        if register is None:
            return self._first
        return self._kind.states(register.pending() if self._depth else (register.newest,))

    def state_dict(self) -> dict[str, Any]:
        """Torch's five keys, and with depth > 0 ``pending``: the scales computed and not yet in force.

        Waits for the optimizer's thread. With depth > 0 no ticket may be outstanding. {} if disabled. Of a policy:
        its name, its numbers and its state.
        """
        if not self._enabled:
            return {}
        self.synchronize()
        return self._kind.to_dict(self._rule, self._states(), self._depth)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; takes torch's five keys too. Ends the iteration that runs."""
        if not self._enabled:
            return
        self.synchronize()
        rule, states = self._kind.from_dict(state_dict, self._rule)
        newest = None if self._iterations.register is None else self._iterations.started("load_state_dict").newest
        self._iterations.restore(() if newest is None else self._kind.restored(newest, states, rule))
        if self._kind.in_place:
            self._report = replace(self._report, ticket=-1)  # graphs still write it; tickets are counted anew
        else:
            self._scaled, self._report = None, StepReport()
        self._rule, self._first = rule, states
        self._ledger.clear()

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name in _PICKLED}
        if self._enabled:
            self.synchronize()
            if self._ledger:
                raise AssertionError(
                    "A GradScaler instance may only be pickled at the beginning "
                    "of an iteration, or at the end after scaler.update()."
                )
            kept["_first"] = self._states()
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._launch = None  # a thread does not travel: the copy works on its caller's
        self._reset()

    def _after_fork(self) -> None:
        self._lock = self._sync.Lock()
        self._ledger.after_fork()
        self._iterations.after_fork()


_PICKLED = {
    "_device",
    "_enabled",
    "_at_min_scale",
    "_exact_torch",
    "_depth",
    "_allow_fp16",
    "_kind",
    "_rule",
    "_first",
} | {f"_{name}" for name in saving.CONSTANTS}
alive: "weakref.WeakSet[Checkpointed]" = weakref.WeakSet()  # whose locks a child must make anew


def _fork_all() -> None:
    for scaler in list(alive):
        scaler._after_fork()  # noqa: SLF001


os.register_at_fork(after_in_child=_fork_all)
