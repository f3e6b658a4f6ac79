"""The private names of torch's scaler, for code that uses them.

    ================================================ ==========================================================
    name                                             who uses it
    ================================================ ==========================================================
    ``isinstance(s, torch.amp.GradScaler)``          trainers that otherwise call ``loss.backward()``, unscaled
    ``_scale``, ``_get_scale_async``                 logging, floors (``_scale.clamp_(min=1)``), fused optimizers
    ``_growth_tracker``, ``_init_scale``,            logging, torch's own tests
    ``_init_growth_tracker``
    ``_growth_factor``, ``_backoff_factor``,         schedules of the constants
    ``_growth_interval``
    ``_per_optimizer_states``,                       trainers with sharpness-aware minimization, subclasses that copy
    ``_found_inf_per_device``                        ``step``, Lightning's and FSDP2's tests, all-reduces of found_inf
    ``_check_inf_per_device``                        fused LAMB, distributed Shampoo
    ``_check_scale_growth_tracker``,                 subclasses of torch's scaler
    ``_lazy_init_scale_growth_tracker``
    ``_unscale_grads_``, ``_maybe_opt_step``,        overridden: to take fp16, to agree among ranks, to count
    ``update``, copied                               overflows first
    ================================================ ==========================================================

A read returns the current value. A write takes effect or raises. An override is called where torch calls it, or the
constructor raises.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler as TorchScaler
from torch.optim import Optimizer

from ampsim.core.machine import Rule
from ampsim.core.policies import Policy
from ampsim.core.validation import as_int
from ampsim.torch import checkpoint, config
from ampsim.torch.attributes import Name, NotMade, constant
from ampsim.torch.shown import OptimizerStates, ShownTensor
from ampsim.torch.state.version import AnyVersion
from ampsim.torch.step.optimizer_step import OptimizerStep, Overrides
from ampsim.torch.step.ranks import Ranks
from ampsim.torch.step.records import Record, StepRecords
from ampsim.torch.threads.iterations import Iterations

CHECK = "_check_inf_per_device"


class TorchNames(TorchScaler):
    """A subclass of torch's scaler with its private names, without its ``__init__``; see the module.

    Methods that only read or write such a name, e.g. `set_growth_factor` and `is_enabled`, are torch's own.
    """

    _iterations: Iterations[AnyVersion] = NotMade()  # type: ignore[assignment]
    _records: StepRecords
    _rule: Any
    _first: checkpoint.States
    _options: config.Options = NotMade()  # type: ignore[assignment]
    _ranks: Ranks | None
    _start: Callable[..., Any]
    _holding: Callable[..., Any]
    _stepped: Callable[[int, Record], None]
    _end: Callable[..., None]
    _by_hand: AnyVersion | None  # the version that an `update` of a subclass has built so far
    synchronize: Callable[[], None]

    def _scale_now(self) -> Tensor | None:
        if (register := self._iterations.register) is None:
            return None
        version = self._by_hand or self._iterations.seen_here(register)
        return version.scale_on(version.device)

    def _read_scale(self) -> Tensor | None:
        """Return a live tensor of the current scale, or None; of a capturable scaler the tensor itself."""
        if self._options.capturable:
            return self._scale_now()
        return ShownTensor.of(self._scale_now, self._write_scale, self._updated)

    def _write_scale(self, new_scale: Any) -> None:
        """Set the scale, as ``update(new_scale)``; within an iteration, raise unless it is the same number.

        None restores the initial scale, as in torch.
        """
        new_scale = self._init_scale if new_scale is None else new_scale
        if isinstance(new_scale, int) or (
            isinstance(new_scale, Tensor) and new_scale.device.type != self._device
        ):
            new_scale = float(new_scale)
        if isinstance(new_scale, Tensor) and new_scale.numel() == 1:
            new_scale = new_scale.reshape(())
        new_scale = config.new_scale_by_value(new_scale, self._device, self._rule, self._options)
        self._write(
            "_scale",
            new_scale,
            self._scale_now,
            lambda version: version.override(self._rule, new_scale),
        )

    def _write(
        self,
        name: str,
        value: Any,
        read: Callable[[], Tensor | None],
        advance: Callable[[AnyVersion], AnyVersion],
    ) -> None:
        """Replace the newest version; raise RuntimeError within an iteration, unless `value` is unchanged.

        A subclass with its own `update` may write in it; the write takes effect when it clears the states.
        """
        register = self._iterations.register or self._start(torch.device(self._device))
        self.synchronize()
        if not register.outstanding():
            ticket = register.begin()
            register.apply(ticket, advance, is_async=False)
            self._records.move_on(ticket.index)
        elif self._updates_by_hand():
            self._by_hand = advance(self._by_hand or register.newest)
        elif read() != value:
            raise RuntimeError(
                f"{name} set to {value!r} between scale() and update(): an iteration must keep its scale and "
                "growth tracker; set it after update(), call update(new_scale), or pass group= if ranks must agree"
            )

    def _tracker_now(self) -> Tensor | None:
        if (register := self._iterations.register) is None:
            return None
        return torch.full((), self._clean_steps(), dtype=torch.int32, device=register.newest.device)

    def _read_tracker(self) -> Tensor | None:
        return ShownTensor.of(self._tracker_now, self._write_tracker, self._updated)

    def _write_tracker(self, tracker: Any) -> None:
        """Set the growth tracker, as `_write_scale` sets the scale."""
        if isinstance(self._rule, Policy):
            raise RuntimeError(
                f"_growth_tracker set to {tracker!r} with a policy, which has none: expected a rule; call "
                "load_state_dict() with the policy's state"
            )
        tracker = self._init_growth_tracker if tracker is None else tracker
        if isinstance(tracker, Tensor) and tracker.numel() == 1:
            tracker = tracker.item()
        tracker = as_int("_growth_tracker", tracker, 0, "to restart the count set 0")

        def counted(version: AnyVersion) -> AnyVersion:
            return version.restored(
                (replace(version.saved(), growth_tracker=tracker),), self._rule
            )[-1]

        self._write("_growth_tracker", tracker, self._tracker_now, counted)

    def _write_first(self, **change: float) -> None:
        if isinstance(self._rule, Policy):
            raise RuntimeError(
                f"{change} set as what the scaler starts from: expected that of a rule, not with a policy; call "
                "update(new_scale) or load_state_dict()"
            )
        if self._iterations.register is None:
            saved = checkpoint.to_dict(
                self._rule, self._first, self._options.depth
            )  # by no override of a subclass
            _, self._first = checkpoint.from_dict(saved | change, self._rule, self._options)
        elif "scale" in change:  # it has started: as in torch, this is read and no more
            self._first = (replace(self._first[0], **change), *self._first[1:])
        else:
            self._first = (
                *self._first[:-1],
                replace(self._first[-1], growth_tracker=change["_growth_tracker"]),
            )

    def _read_states(self) -> OptimizerStates:
        return OptimizerStates(
            self._records, self._stepped, self._end_by_hand, by_ranks=self._ranks is not None
        )

    def _write_states(self, states: Any) -> None:
        now = self._read_states()
        now.clear()
        now.update(states)
        self._records.factory = getattr(states, "default_factory", None) or self._records.factory

    def _updates_by_hand(self) -> bool:
        """Tell whether an `update` copied from torch's, a subclass's or put into ours, may end iterations."""
        plain = self._ranks is None and not (self._options.depth or self._iterations.by_ticket)
        patched = not str(getattr(type(self).update, "__module__", "")).startswith("ampsim.torch.")
        return (
            plain
            and not self._iterations.launcher.remote
            and (patched or not self._is_ours("update"))
        )

    def _end_by_hand(self) -> None:
        """End the iteration with the scale and the count that were written in it, if any was."""
        if self._by_hand is not None:
            self._end(None, lambda version: version)

    def _updated(self) -> None:
        """End the iteration by a call of torch's kernel, where it leaves an `update` no states to clear."""
        if not self._records.any_from(self._iterations.started("update").applied):
            self._end_by_hand()

    def _set_constant(self, name: str, value: float) -> None:
        """Set a constant of the rule in order with updates: on the optimizer's thread where there is one."""

        def changed() -> Rule:
            return config.changed(self._rule, self._options, **{name: value})

        def change() -> None:
            self._rule = changed()

        changed()  # raises on the caller's thread

        launcher = self._iterations.launcher
        if launcher.here():
            change()
        else:
            launcher.send(change)

    _scale = Name(_read_scale, _write_scale)
    _growth_tracker = Name(_read_tracker, _write_tracker)
    _init_scale = Name(
        lambda self: self._first[0].scale, lambda self, scale: self._write_first(scale=float(scale))
    )
    _init_growth_tracker = Name(
        lambda self: self._first[-1].growth_tracker,
        lambda self, tracker: self._write_first(_growth_tracker=tracker),
    )
    _per_optimizer_states = Name(_read_states, _write_states)
    _growth_factor: float = constant("growth_factor")
    _backoff_factor: float = constant("backoff_factor")
    _growth_interval: int = constant("growth_interval")

    def _get_growth_tracker(self) -> int:
        return self._clean_steps() if self._enabled else 0

    def _clean_steps(self) -> int:
        register = self._iterations.register
        version = self._by_hand or (register and register.newest)
        tracker: int = (version.read() if version else self._first[-1]).growth_tracker
        return tracker

    def _lazy_init_scale_growth_tracker(self, dev: torch.device) -> None:
        """Make the first scale, on this device."""
        if self._iterations.register is not None:
            raise AssertionError("_growth_tracker initialized before _scale")
        self._start(dev)

    def _check_inf_per_device(self, optimizer: Optimizer) -> dict[torch.device, Tensor]:  # type: ignore[override]
        """Record by device whether the gradients, which stay scaled, are all finite: 0.0 or 1.0, shape ()."""
        ticket = self._iterations.stepping(CHECK, None)
        return self._holding(CHECK, optimizer, ticket, OptimizerStep.check)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------------------------------- overrides

    def _check_overrides(self) -> None:
        """Raise TypeError for an override of what torch's other methods call and ours do not."""
        for name in sorted(_NEVER_CALLED):
            if not self._is_ours(name):
                raise TypeError(
                    f"{type(self).__name__} overrides {name}, which would never be called: expected "
                    "public methods, _unscale_grads_ or _maybe_opt_step; override those, or derive from "
                    "torch.amp.GradScaler"
                )

    def _is_ours(self, name: str) -> bool:
        """Tell whether a method is one of this package or of torch's scaler, and of no subclass or instance."""
        return not callable(vars(self).get(name)) and _owner(
            type(self), name
        ).__module__.startswith(("ampsim.torch.", "torch.amp."))

    def _overridden(self, name: str) -> Any:
        """Return this scaler's method if it is not torch's, else None."""
        method = getattr(self, name)
        return None if getattr(method, "__func__", None) is _CALLED[name] else method

    def _overrides(self) -> Overrides:
        kind, own = type(self), vars(self)
        if (
            kind._unscale_grads_ is _UNSCALE
            and kind._maybe_opt_step is _STEP  # noqa: SLF001
            and _PRIVATE.isdisjoint(own)
        ):
            return _NO_OVERRIDES
        if not _NEVER_CALLED.isdisjoint(own):
            self._check_overrides()
        maybe_opt_step = self._overridden("_maybe_opt_step")

        def take(optimizer: Optimizer, *args: Any, **kwargs: Any) -> object:
            return maybe_opt_step(
                optimizer, self._per_optimizer_states[id(optimizer)], *args, **kwargs
            )

        return Overrides(self._overridden("_unscale_grads_"), take if maybe_opt_step else None)


def _owner(kind: type[TorchScaler], name: str) -> type:
    return next(cls for cls in kind.__mro__ if name in vars(cls))


def _torchs(name: str) -> Any:
    """Return a method of torch's scaler, None if somebody has put another in its place."""
    method = getattr(TorchScaler, name)
    return (
        method
        if getattr(getattr(method, "__code__", None), "co_filename", None)
        == torch.amp.grad_scaler.__file__
        else None
    )


_NO_OVERRIDES = Overrides()
_CALLED = {name: _torchs(name) for name in ("_unscale_grads_", "_maybe_opt_step")}
_UNSCALE, _STEP = _CALLED.values()
_NEVER_CALLED = {
    "_scale", "_growth_tracker", "_init_scale", "_init_growth_tracker", "_growth_factor", "_backoff_factor",
    "_growth_interval", "_per_optimizer_states", "_check_scale_growth_tracker", "_check_inf_per_device",
    "_get_scale_async", "_get_growth_tracker",
}  # fmt: skip
_PRIVATE = _NEVER_CALLED | _CALLED.keys()
