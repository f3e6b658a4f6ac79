"""Record what a training script does with its loss scaler.

Plain loops and frameworks end in the same functions of torch: `GradScaler`, `Optimizer.step`,
`autograd.backward`, `clip_grad_norm_`, `LRScheduler.step`, `torch.save`. `Recorder.install`
replaces them by functions that add an event and tell the listener. What the events mean is left to
the checks.
"""

import inspect
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Sized
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ampsim.testing.lines import OWN, TORCH, Place, running_code, where
from ampsim.testing.script_checks.patching import Patches
from ampsim.testing.script_checks.snapshot import SHAPES, contents
from ampsim.testing.script_checks.trace import (
    Event,
    Frequency,
    Kind,
    OptimizerTrace,
    Save,
    ScalerTrace,
)

CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")
READS = ("item", "__float__", "tolist", "numpy")  # what makes numbers of a tensor


class Listener:
    """What a recorder tells of each moment; the methods do nothing."""

    def before_scale(self) -> None:
        """Act before a loss is scaled."""

    def after_backward(self, received: list[OptimizerTrace]) -> None:
        """Act when gradients of some optimizers have arrived."""

    def before_step(self, optimizer: OptimizerTrace) -> None:
        """Act before an optimizer itself steps."""

    def after_attempt(self, optimizer: OptimizerTrace, *, taken: bool) -> None:
        """Act after a step that was taken or skipped."""

    def after_update(self) -> None:
        """Act after an update of a scaler."""

    def after_read(self, tensor: Tensor) -> None:
        """Act when the script makes a number of a tensor."""

    def save_target(self, target: Any) -> Any:
        """Return where a checkpoint is written that the script saves at a path."""
        return target

    def end(self, why: str, error: str = "") -> None:
        """Act when the script has ended."""


class Recorder:
    """The record of one process.

    Attributes:
        listener: Who is told of each moment.
        events: All calls, in their order.
        optimizers: By their ids.
        scalers: The enabled ones, by their ids.
        disabled: Where disabled scalers were created.
        saves: Files that the script has saved by torch.
        precisions: Of autocast, where the script enables it.
        scale_readers: Functions of the script that read the loss scale.
        scale_calls: Number of calls of `scale`.
        scales_since_attempt: The same, since the last step.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.events: list[Event] = []
        self.optimizers: dict[int, OptimizerTrace] = {}
        self.scalers: dict[int, ScalerTrace] = {}
        self.disabled: list[Place] = []
        self.saves: list[Save] = []
        self.precisions: set[str] = set()
        self.scale_readers: set[object] = set()
        self._scaled: list[Tensor] = []  # the last scaled losses
        self._scaled_reads: dict[Place, object] = {}  # place -> function
        self.scale_calls = 0
        self.scales_since_attempt = 0
        # Scalers whose losses the current backward pass reaches.
        self._reached: list[ScalerTrace] = []
        self._stepping = False  # a scaler steps an optimizer
        # Where each schedule was created; None while it is created.
        self._made: WeakKeyDictionary[LRScheduler, Place | None] = WeakKeyDictionary()

    def install(self) -> Patches:
        """Patch torch, and return the patches, whose context undoes them."""
        patches = Patches()
        patches.family(torch.amp.GradScaler, partial(self._patch_scaler, patches))
        patches.family(LRScheduler, partial(self._patch_schedule, patches))
        patches.function(
            Optimizer, "__init__", "optimizer.__init__", self._made_optimizer
        )
        patches.function(Optimizer, "load_state_dict", "load", self._load)
        autocast = torch.amp.autocast_mode.autocast
        patches.function(autocast, "__init__", "autocast", self._autocast)
        patches.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        patches.callback(register_optimizer_step_post_hook(self._after_step).remove)
        for name in CLIPS:
            if clip := getattr(torch.nn.utils.clip_grad, name, None):
                patches.everywhere(clip, "clip", self._clip)
        patches.everywhere(torch.autograd.backward, "backward", self._backward)
        patches.everywhere(torch.save, "save", self._save)
        patches.everywhere(pickle.dump, "save", self._save)
        for name in READS:
            patches.attribute(Tensor, name, self._reading(getattr(Tensor, name)))
        return patches

    # -------------------------------------------------------------------------------------------------
    # what is known

    def optimizer(self, optimizer: Any) -> OptimizerTrace:
        """Return what is known of an optimizer, or of the one that a framework has wrapped."""
        # An optimizer has a `state` dict of its own, also if it has an attribute `optimizer`.
        while hasattr(optimizer, "optimizer") and not isinstance(
            vars(optimizer).get("state"), dict
        ):
            optimizer = optimizer.optimizer
        key = id(optimizer)
        if key not in self.optimizers:
            name = _numbered(optimizer, self.optimizers)
            self.optimizers[key] = OptimizerTrace(optimizer, name, where())
        return self.optimizers[key]

    def scaler(self, scaler: Any) -> ScalerTrace:
        """Return what is known of an enabled scaler."""
        key = id(scaler)
        if key not in self.scalers:
            name = _numbered(scaler, self.scalers)
            self.scalers[key] = ScalerTrace(scaler, name, where())
        return self.scalers[key]

    def _add(
        self, kind: Kind, *traces: OptimizerTrace, note: str = "", scaler: str = ""
    ) -> Event:
        names = [trace.name for trace in traces]
        self.events.append(Event(kind, where(), names, note, scaler))
        return self.events[-1]

    # ----------------------------------------------------------------------------------------------------
    # the scaler

    def _patch_scaler(self, patches: Patches, cls: type) -> None:
        patches.function(cls, "__init__", "scaler.__init__", self._made_scaler)
        patches.function(cls, "get_scale", "scaler.get_scale", self._get_scale)
        patches.function(cls, "load_state_dict", "scaler.load", self._load_scaler)
        hooks = (self._scale, self._unscale_, self._step, self._update)
        for hook in hooks:
            name = hook.__name__.removeprefix("_")
            patches.function(cls, name, f"scaler.{name}", _if_enabled(hook))

    def _made_scaler(
        self, original: Any, scaler: Any, *args: Any, **kwargs: Any
    ) -> None:
        original(scaler, *args, **kwargs)
        if scaler.is_enabled():
            self.scaler(scaler)
        else:
            self.disabled.append(where())

    def _get_scale(self, original: Any, scaler: Any) -> Any:
        if not sys._getframe(2).f_code.co_filename.startswith(OWN):
            self.scale_readers.add(running_code())
        return original(scaler)

    def _scale(
        self, original: Any, scaler: Any, outputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        trace = self.scaler(scaler)
        self.listener.before_scale()
        self.scale_calls += 1
        self.scales_since_attempt += 1
        scaled = original(scaler, outputs, *args, **kwargs)
        self._add("scale", scaler=trace.name)
        for loss in [scaled] if isinstance(scaled, Tensor) else [*scaled]:
            if isinstance(loss, Tensor) and loss.requires_grad:
                self._scaled = [*self._scaled[-3:], loss.detach()]
                loss.register_hook(lambda _: self._reached.append(trace))  # type: ignore[no-untyped-call]
        return scaled

    def _unscale_(self, original: Any, scaler: Any, optimizer: Any, *args: Any) -> Any:
        if not self._stepping:  # a step unscales by itself
            trace = self.optimizer(optimizer)
            self._add("unscale_", trace, scaler=self.scaler(scaler).name)
            trace.arrived = None
        return original(scaler, optimizer, *args)

    def _step(
        self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        trace = self.optimizer(optimizer)
        owner = self.scaler(scaler)
        event = self._add("step", trace, scaler=owner.name)
        event.is_useless = _is_used(trace)
        trace.scaler = owner
        self._stepping = True
        calls = trace.calls
        try:
            result = original(scaler, optimizer, *args, **kwargs)
        finally:
            self._stepping = False
        overflowed = _found_inf(scaler, trace.optimizer, optimizer)
        # The scaler's own record decides; a hook does not see an optimizer that is not torch's.
        taken = trace.calls > calls if overflowed is None else not overflowed
        self._attempted(trace, event, taken=taken)
        return result

    def _attempted(self, trace: OptimizerTrace, event: Event, *, taken: bool) -> None:
        event.note = "taken" if taken else "skipped"
        event.passes = trace.passes
        trace.passes = []
        event.adds_to_old = bool(event.passes) and not trace.is_cleared
        trace.is_cleared &= not (taken and event.passes)
        trace.used = _versions(trace) if taken and event.passes else None
        trace.attempts.append(taken)
        self.scales_since_attempt = 0
        self.listener.after_attempt(trace, taken=taken)

    def _update(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        trace = self.scaler(scaler)
        event = self._add("update", scaler=trace.name)
        before = trace.scale
        result = original(scaler, *args, **kwargs)
        trace.updates += 1
        event.note = f"scale {before:g} to {trace.scale:g}"
        self.listener.after_update()
        return result

    # ---------------------------------------------------------- backward, optimizer, schedule, clip

    def _backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        for trace in self.optimizers.values():
            _forget_cleared(trace)
        self._reached = []
        event = self._add("backward")
        before = {key: _versions(trace) for key, trace in self.optimizers.items()}
        result = original(*args, **kwargs)
        event.is_scaled = bool(self._reached)
        event.note = "scaled loss" if event.is_scaled else "plain loss"
        received = []
        for key, trace in self.optimizers.items():
            if _versions(trace) != before.get(key):
                received.append(trace)
                self._receive(trace, event)
        self.listener.after_backward(received)
        return result

    def _receive(self, trace: OptimizerTrace, event: Event) -> None:
        """Note that gradients of a backward pass have arrived."""
        event.optimizers.append(trace.name)
        if not trace.first:
            trace.first = [param.detach().clone() for param in trace.parameters]
        for param in trace.parameters:
            if param.grad is not None:
                trace.received.add(id(param))
        trace.passes.append(event)
        trace.arrived = contents(trace.parameters[-SHAPES:])
        trace.grads = {*map(id, trace.gradients)}
        if self._reached:
            trace.scaler = self._reached[-1]

    def _made_optimizer(
        self, original: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> None:
        original(optimizer, *args, **kwargs)
        self.optimizer(optimizer)

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        trace = self.optimizer(optimizer)
        if not self._stepping:
            self._add("optimizer.step", trace)
        trace.own_gradients |= trace.grads != {*map(id, trace.gradients)}
        self.listener.before_step(trace)

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        trace = self.optimizer(optimizer)
        # A fused optimizer is called in a skipped step.
        found = getattr(optimizer, "found_inf", None)
        taken = found is None or not float(found)
        trace.calls += taken
        if not self._stepping:
            events = reversed(self.events)
            event = next(each for each in events if each.kind == "optimizer.step")
            self._attempted(trace, event, taken=taken)

    def _patch_schedule(self, patches: Patches, cls: type) -> None:
        patches.function(cls, "__init__", "schedule.__init__", self._made_schedule)
        patches.function(cls, "step", "schedule.step", self._schedule)

    def _made_schedule(
        self, original: Any, schedule: Any, *args: Any, **kwargs: Any
    ) -> None:
        self._made[schedule] = None  # a constructor steps, too
        original(schedule, *args, **kwargs)
        self._made[schedule] = where()

    def _schedule(self, original: Any, schedule: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(schedule, *args, **kwargs)
        optimizer = getattr(schedule, "optimizer", None)
        made = self._made.get(schedule, Place("unknown place"))
        if optimizer is not None and made:
            trace = self.optimizer(optimizer)
            name = type(schedule).__name__
            event = self._add("schedule", trace, note=name)
            event.schedule = name
            event.made = made
            frequency = trace.schedules.setdefault((name, made), Frequency())
            frequency.calls += 1
            frequency.attempts = len(trace.attempts)
        return result

    def _clip(self, original: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [parameters] if isinstance(parameters, Tensor) else [*parameters]
        ids = {id(tensor) for tensor in tensors}
        traces = self.optimizers.values()
        owners = [
            trace for trace in traces if not ids.isdisjoint(map(id, trace.parameters))
        ]
        threshold = (
            args[0] if args else kwargs.get("max_norm", kwargs.get("clip_value"))
        )
        if threshold != torch.inf:  # which only measures the norm
            note = f"{original.__name__} at {threshold}"
            event = self._add("clip", *owners, note=note)
            event.is_useless = all(map(_is_used, owners))
        for trace in owners:
            trace.arrived = None
        return original(tensors, *args, **kwargs)

    # -------------------------------------------------------------------------------------------
    # files and numbers

    def _save(self, original: Any, *args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(original).bind(*args, **kwargs)
        (_, value), (name, target), *_ = bound.arguments.items()
        kinds = state_kinds(value)
        event = self._add("save", note=" and ".join(sorted(kinds)))
        is_path = isinstance(target, (str, os.PathLike))
        folder = (
            os.path.dirname(os.path.abspath(target)) if is_path else str(event.where)
        )
        self.saves.append(Save(event, folder, kinds, bool(own_kind(value))))
        bound.arguments[name] = self.listener.save_target(target)
        original(*bound.args, **bound.kwargs)

    def _load(self, original: Any, optimizer: Any, state_dict: Any) -> None:
        if state_dict["state"]:  # not a fresh one's
            self._add("load", self.optimizer(optimizer))
        original(optimizer, state_dict)

    def _load_scaler(self, original: Any, scaler: Any, state_dict: Any) -> None:
        self._add("load", scaler=self.scaler(scaler).name)
        original(scaler, state_dict)

    def _autocast(
        self,
        original: Any,
        context: Any,
        device_type: Any,
        dtype: Any = None,
        enabled: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if enabled:
            self.precisions.add(str(dtype))
        original(context, device_type, dtype, enabled, *args, **kwargs)

    @property
    def scaled_reads(self) -> list[Place]:
        """Where the script makes a number of a scaled loss, in a function that does not read the
        scale.
        """
        reads = self._scaled_reads.items()
        return [place for place, code in reads if code not in self.scale_readers]

    def _reading(self, original: Any) -> Any:
        """Return a function that tells the listener where the script makes a number of a tensor."""

        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_code.co_filename
            # torch reads found_inf and the scale; its _tensor.py formats a tensor for the script.
            is_ours = TORCH in caller or caller.startswith(OWN)
            if not is_ours or caller.endswith(("_tensor.py", "_tensor_str.py")):
                self.listener.after_read(tensor)
                pointers = [scaled.data_ptr() for scaled in self._scaled]
                if tensor.numel() == 1 and tensor.data_ptr() in pointers:
                    self._scaled_reads.setdefault(where(), running_code())
            return original(tensor, *args, **kwargs)

        return read


def _numbered(value: object, known: Sized) -> str:
    """Return the name of an object that is not yet known: its class and its place."""
    return f"{type(value).__name__}#{len(known) + 1}"


def _if_enabled(hook: Callable[..., Any]) -> Callable[..., Any]:
    def checked(original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if scaler.is_enabled():
            return hook(original, scaler, *args, **kwargs)
        return original(scaler, *args, **kwargs)

    return checked


def _forget_cleared(trace: OptimizerTrace) -> None:
    """Note before a backward pass whether gradients were cleared, and lost for a step.

    Zero gradients were cleared. Some wrappers, as accelerate's, clear nothing within an
    accumulation.
    """
    if any(bool(grad.any()) for grad in trace.gradients):
        return
    # Where parameters have moved, as in SAM, something has used the gradients.
    if contents(trace.parameters[-SHAPES:]) == trace.arrived:
        for event in trace.passes:
            event.is_useless = True
    trace.passes = []
    trace.is_cleared = True


def own_kind(value: Any) -> str:
    """Return of which of "optimizer" and "scaler" a value is the state; "" for neither."""
    keys = value.keys() if isinstance(value, dict) else set()
    if {"state", "param_groups"} <= keys:
        return "optimizer"
    return "scaler" if {"scale", "growth_factor", "backoff_factor"} <= keys else ""


def state_kinds(value: Any, depth: int = 0) -> set[str]:
    """Return which of "optimizer" and "scaler" have their state in a checkpoint."""
    if kind := own_kind(value):
        return {kind}
    value = [*value.values()] if isinstance(value, dict) else value
    if not isinstance(value, (list, tuple)) or depth > 3 or len(value) > 500:
        return set()
    return set().union(*(state_kinds(item, depth + 1) for item in value))


def _is_used(trace: OptimizerTrace) -> bool:
    """Return whether a step has used the gradients that are there."""
    return not trace.passes and bool(trace.used) and trace.used == _versions(trace)


def _versions(trace: OptimizerTrace) -> Iterable[tuple[int, int]]:
    """Return what differs after a gradient has changed."""
    return [(id(grad), grad._version) for grad in trace.gradients]


def _found_inf(scaler: Any, *optimizers: Any) -> bool | None:
    """Return whether the scaler found an inf in the last step of an optimizer; None if it has no
    record.
    """
    states = getattr(scaler, "_per_optimizer_states", {})
    for optimizer in optimizers:
        if id(optimizer) in states and (
            found := states[id(optimizer)]["found_inf_per_device"]
        ):
            return any(bool(flag.item()) for flag in found.values())
    return None
