"""Record what a training script does with its loss scaler.

Theory of operation
-------------------
Plain loops and frameworks end in the same functions of torch: `GradScaler`, `Optimizer.step`, `autograd.backward`,
`clip_grad_norm_`, `LRScheduler.step`, `torch.save`. `Recorder.install` replaces them by functions that add an event.
An event has the stage of each optimizer's gradients, that is, what they are multiplied by:

    backward of a scaled loss: none -> scaled         unscale_: scaled -> unscaled
    backward of a plain loss:  none -> plain          a step:   any -> used
    backward after unscale_:   unscaled -> mixed      zero_grad: any -> none

The checks read the events; what needs a comparison of runs is left to `trials`.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ampsim.testing.lines import OWN, TORCH, function, where
from ampsim.testing.script_checks.patching import Patches
from ampsim.testing.script_checks.trace import (
    Event,
    Kind,
    OptimizerTrace,
    Save,
    ScalerTrace,
    variables,
)

CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")
READS = ("item", "__float__", "tolist", "numpy")  # what makes numbers of a tensor


class Listener:
    """Is called at the moments of a script; each method does nothing until a subclass overrides it."""

    def before_scale(self) -> None:
        """Hear that a loss is about to be scaled."""

    def after_scale(self, scaled: Any) -> Any:
        """Return the scaled loss that the script gets."""
        return scaled

    def after_backward(self, received: list[OptimizerTrace]) -> None:
        """Hear that gradients of these optimizers have changed."""

    def before_attempt(self, optimizer: OptimizerTrace) -> None:
        """Hear that a scaler is about to step an optimizer."""

    def before_step(self, optimizer: OptimizerTrace) -> None:
        """Hear that an optimizer is about to step."""

    def after_attempt(self, optimizer: OptimizerTrace, *, taken: bool) -> None:
        """Hear that a step was taken or skipped."""

    def after_update(self, scaler: ScalerTrace) -> None:
        """Hear that a scaler was updated."""

    def after_read(self, tensor: Tensor) -> None:
        """Hear that the script makes a number of a tensor."""

    def save_target(self, target: Any) -> Any:
        """Return where a checkpoint is written; None for nowhere."""
        return target


class Recorder:
    """The record of one process.

    Attributes:
        events: All calls, in their order.
        optimizers: By their ids.
        scalers: The enabled ones, by their ids.
        disabled: Where disabled scalers were created.
        saves: Files that the script has saved by torch.
        autocasts: By dtype, where autocast was first entered.
        scale_readers: Functions of the script that read the loss scale.
        scale_calls: Number of calls of `scale`.
        scales_since_attempt: The same, since the last step.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.events: list[Event] = []
        self.optimizers: dict[int, OptimizerTrace] = {}
        self.scalers: dict[int, ScalerTrace] = {}
        self.disabled: list[str] = []
        self.saves: list[Save] = []
        self.autocasts: dict[str, str] = {}
        self.scale_readers: set[object] = set()
        self.scale_calls = 0
        self.scales_since_attempt = 0
        self._differentiated: set[int] = set()  # scalers whose losses the current backward reaches
        self._stepping: ScalerTrace | None = None
        self._constructing = False  # a learning rate schedule

    def install(self) -> Patches:
        """Patch torch, and return the patches, whose context undoes them."""
        patches = Patches()
        patches.family(torch.amp.GradScaler, partial(self._patch_scaler, patches))
        patches.family(LRScheduler, partial(self._patch_schedule, patches))
        patches.family(Optimizer, partial(self._patch_optimizer, patches))
        patches.function(torch.nn.Module, "zero_grad", "zero_grad", self._zero_grad)
        patches.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        patches.callback(register_optimizer_step_post_hook(self._after_step).remove)
        for name in CLIPS:
            if clip := getattr(torch.nn.utils.clip_grad, name, None):
                patches.everywhere(clip, "clip", self._clip)
        patches.everywhere(torch.autograd.backward, "backward", self._backward)
        patches.everywhere(torch.save, "save", self._save)
        autocast = torch.amp.autocast_mode.autocast
        patches.function(autocast, "__enter__", "autocast", self._enter_autocast)
        for name in READS:
            patches.attribute(Tensor, name, self._reading(getattr(Tensor, name)))
        return patches

    # ------------------------------------------------------------------------------------------------- what is known

    def optimizer(self, optimizer: Any) -> OptimizerTrace:
        """Return what is known of an optimizer, or of the one that a framework has wrapped."""
        while hasattr(optimizer, "optimizer") and not isinstance(
            vars(optimizer).get("state"), dict
        ):
            optimizer = optimizer.optimizer
        if id(optimizer) not in self.optimizers:
            name = f"{type(optimizer).__name__}#{len(self.optimizers) + 1}"
            self.optimizers[id(optimizer)] = OptimizerTrace(optimizer, name, where())
        return self.optimizers[id(optimizer)]

    def scaler(self, scaler: Any) -> ScalerTrace:
        """Return what is known of an enabled scaler."""
        if id(scaler) not in self.scalers:
            name = f"{type(scaler).__name__}#{len(self.scalers) + 1}"
            self.scalers[id(scaler)] = ScalerTrace(scaler, name, where())
        return self.scalers[id(scaler)]

    def owners(self, tensors: Iterable[Tensor]) -> list[OptimizerTrace]:
        """Return the optimizers that have some of these parameters."""
        ids = {id(tensor) for tensor in tensors}
        traces = self.optimizers.values()
        return [trace for trace in traces if not ids.isdisjoint(map(id, trace.parameters))]

    def _add(self, kind: Kind, *traces: OptimizerTrace, note: str = "", scaler: str = "") -> Event:
        stages = {trace.name: trace.stage for trace in traces}
        self.events.append(Event(kind, where(), stages, note, scaler))
        return self.events[-1]

    # ---------------------------------------------------------------------------------------------------- the scaler

    def _patch_scaler(self, patches: Patches, cls: type) -> None:
        hooks = {
            "__init__": self._made_scaler,
            "scale": self._if_enabled(self._scale),
            "unscale_": self._if_enabled(self._unscale),
            "step": self._if_enabled(self._step),
            "update": self._if_enabled(self._update),
            "get_scale": self._get_scale,
        }
        for name, hook in hooks.items():
            patches.function(cls, name, f"scaler.{name}", hook)

    @staticmethod
    def _if_enabled(hook: Callable[..., Any]) -> Callable[..., Any]:
        def checked(original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if scaler.is_enabled():
                return hook(original, scaler, *args, **kwargs)
            return original(scaler, *args, **kwargs)

        return checked

    def _made_scaler(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
        original(scaler, *args, **kwargs)
        if scaler.is_enabled():
            self.scaler(scaler)
        else:
            self.disabled.append(where())

    def _get_scale(self, original: Any, scaler: Any) -> Any:
        if not sys._getframe(2).f_code.co_filename.startswith(OWN):
            self.scale_readers.add(function())
        return original(scaler)

    def _scale(self, original: Any, scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        trace = self.scaler(scaler)
        self.listener.before_scale()
        self.scale_calls += 1
        self.scales_since_attempt += 1
        if trace.losses == 0:  # the script's variables that hold it are in reach now
            trace.variables |= variables(scaler)
        trace.losses += 1
        scaled = self.listener.after_scale(original(scaler, outputs, *args, **kwargs))
        self._add("scale", scaler=trace.name)
        for loss in [scaled] if isinstance(scaled, Tensor) else [*scaled]:
            if isinstance(loss, Tensor) and loss.requires_grad:
                hook = partial(self._reached, id(scaler))
                loss.register_hook(hook)  # type: ignore[no-untyped-call]
        return scaled

    def _reached(self, scaler: int, _: Tensor) -> None:
        """Note that a backward pass reaches a loss of a scaler."""
        self._differentiated.add(scaler)

    def _divided(self, kind: Kind, trace: OptimizerTrace, scaler: ScalerTrace) -> Event:
        """Add a call of the scaler that divides gradients."""
        event = self._add(kind, trace, scaler=scaler.name)
        is_scaled = trace.stage == "scaled"
        event.is_late = is_scaled and trace.scaler is scaler and trace.updates != scaler.updates
        event.divided_by = tuple(
            other.name
            for other in self.owners(trace.parameters)
            if other is not trace and is_scaled and _has_divided(other, trace)
        )
        return event

    def _unscale(self, original: Any, scaler: Any, optimizer: Any, *args: Any) -> Any:
        trace, owner = self.optimizer(optimizer), self.scaler(scaler)
        if self._stepping is not None:  # the step unscales by itself
            result = original(scaler, optimizer, *args)
        else:
            with _noting_errors(self._divided("unscale_", trace, owner)):
                result = original(scaler, optimizer, *args)
        trace.stage, trace.scaler = "unscaled", owner
        return result

    def _step(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        trace, owner = self.optimizer(optimizer), self.scaler(scaler)
        if trace.stage == "used" and _versions(trace) != trace.used_versions:
            trace.clear()  # other gradients than those of the last step, which came without a backward pass
        event = self._divided("step", trace, owner)
        trace.scaler = self._stepping = owner
        calls = trace.calls
        self.listener.before_attempt(trace)
        try:
            with _noting_errors(event):
                result = original(scaler, optimizer, *args, **kwargs)
        finally:
            self._stepping = None
        overflowed = _found_inf(scaler, trace.optimizer, optimizer)
        # The scaler's own record decides; a hook does not see an optimizer that is not torch's.
        taken = trace.calls > calls if overflowed is None else not overflowed
        self._attempted(trace, event, taken=taken)
        return result

    def _attempted(self, trace: OptimizerTrace, event: Event, *, taken: bool) -> None:
        event.note = "taken" if taken else "skipped"
        for backward in trace.pending:
            backward.is_used = True
        trace.pending, trace.stage, trace.used_versions = [], "used", _versions(trace)
        trace.attempts.append(taken)
        self.scales_since_attempt = 0
        self.listener.after_attempt(trace, taken=taken)

    def _update(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        trace = self.scaler(scaler)
        event = self._add("update", scaler=trace.name)
        before = trace.scale
        with _noting_errors(event):
            result = original(scaler, *args, **kwargs)
        trace.updates += 1
        event.note = f"scale {before:g} to {trace.scale:g}"
        self.listener.after_update(trace)
        return result

    # ------------------------------------------------------------------------------ backward, optimizer, schedule, clip

    def _backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        for trace in self.optimizers.values():
            if all(param.grad is None for param in trace.parameters):
                trace.clear()
        self._differentiated = set()
        event = self._add("backward")
        before = {name: _versions(trace) for name, trace in self.optimizers.items()}
        result = original(*args, **kwargs)
        event.note = "scaled loss" if self._differentiated else "plain loss"
        traces = [*self.optimizers.items()]
        received = [trace for name, trace in traces if _versions(trace) != before.get(name)]
        for trace in received:
            event.stages[trace.name] = trace.stage
            self._arrived(trace, event)
        self.listener.after_backward(received)
        return result

    def _arrived(self, trace: OptimizerTrace, event: Event) -> None:
        trace.first = trace.first or [param.detach().clone() for param in trace.parameters]
        trace.pending.append(event)
        scalers = [self.scalers[key] for key in self._differentiated if key in self.scalers]
        if trace.stage in ("none", "used"):
            trace.stage = "scaled" if scalers else "plain"
            for scaler in scalers:
                trace.scaler, trace.updates = scaler, scaler.updates
        elif trace.stage == "unscaled" and scalers:
            trace.stage = "mixed"
        elif (trace.stage == "scaled") != bool(scalers) and trace.stage != "unscaled":
            trace.stage = "partly scaled"

    def _patch_optimizer(self, patches: Patches, cls: type) -> None:
        if cls is Optimizer:
            patches.function(cls, "__init__", "optimizer.__init__", self._made_optimizer)
        patches.function(cls, "zero_grad", "zero_grad", self._zero_grad)

    def _made_optimizer(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self.optimizer(optimizer)

    def _zero_grad(self, original: Any, owner: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(owner, *args, **kwargs)
        is_module = isinstance(owner, torch.nn.Module)
        tensors = [*owner.parameters()] if is_module else self.optimizer(owner).parameters
        for trace in self.owners(tensors):
            # Some wrappers, as accelerate's, clear nothing within an accumulation.
            if not trace.has_gradients:
                self._add("zero_grad", trace)
                trace.clear()
        return result

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        trace = self.optimizer(optimizer)
        if self._stepping is None:
            self._add("optimizer.step", trace)
        self.listener.before_step(trace)

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        trace = self.optimizer(optimizer)
        found = getattr(optimizer, "found_inf", None)
        taken = found is None or not float(found)  # a fused optimizer is called in a skipped step
        trace.calls += taken
        if self._stepping is None:
            steps = (event for event in reversed(self.events) if event.kind == "optimizer.step")
            self._attempted(trace, next(steps), taken=taken)

    def _patch_schedule(self, patches: Patches, cls: type) -> None:
        patches.function(cls, "__init__", "schedule.__init__", self._made_schedule)
        patches.function(cls, "step", "schedule.step", self._schedule)

    def _made_schedule(self, original: Any, *args: Any, **kwargs: Any) -> None:
        self._constructing = True
        try:
            original(*args, **kwargs)
        finally:
            self._constructing = False

    def _schedule(self, original: Any, schedule: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(schedule, *args, **kwargs)
        optimizer = getattr(schedule, "optimizer", None)
        if optimizer is not None and not self._constructing:  # a constructor steps, too
            trace = self.optimizer(optimizer)
            trace.schedules += 1
            self._add("schedule", trace, note=type(schedule).__name__)
        return result

    def _clip(self, original: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [parameters] if isinstance(parameters, Tensor) else [*parameters]
        event = self._add("clip", *self.owners(tensors), note=original.__name__)
        threshold = args[0] if args else kwargs.get("max_norm", kwargs.get("clip_value"))
        event.value = None if threshold is None else float(threshold)
        return original(tensors, *args, **kwargs)

    # ------------------------------------------------------------------------------------------- files and numbers

    def _save(self, original: Any, value: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        kinds = state_kinds(value)
        event = self._add("save", note=" and ".join(sorted(kinds)))
        is_path = isinstance(target, (str, os.PathLike))
        folder = os.path.dirname(os.path.abspath(target)) if is_path else event.where
        self.saves.append(Save(event, folder, kinds, bool(own_kind(value))))
        if (redirected := self.listener.save_target(target)) is not None:
            original(value, redirected, *args, **kwargs)

    def _reading(self, original: Any) -> Any:
        """Return a function that tells the listener where the script makes a number of a tensor."""

        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_code.co_filename
            # torch reads found_inf and the scale; its _tensor.py formats a tensor for the script.
            is_ours = TORCH in caller or caller.startswith(OWN)
            if not is_ours or caller.endswith("_tensor.py"):
                self.listener.after_read(tensor)
            return original(tensor, *args, **kwargs)

        return read

    def _enter_autocast(self, original: Any, context: Any) -> Any:
        dtype = context.fast_dtype if getattr(context, "_enabled", False) else None
        dtype = getattr(context, "_ampsim_dtype", dtype)  # on the CPU, what the script asked for
        if dtype is not None and torch.is_grad_enabled():
            self.autocasts.setdefault(str(dtype), where())
        return original(context)


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


@contextmanager
def _noting_errors(event: Event) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, AssertionError) as error:
        event.error = str(error)
        raise


def _has_divided(other: OptimizerTrace, trace: OptimizerTrace) -> bool:
    """Return whether a scaler has divided the gradients of another optimizer since this one's have come."""
    is_used = any(event.is_used and other.name in event.stages for event in trace.pending)
    return other.stage == "unscaled" or is_used


def _versions(trace: OptimizerTrace) -> tuple[tuple[int, int], ...]:
    """Return what differs after a gradient has changed."""
    grads = (param.grad for param in trace.parameters)
    return tuple((id(grad), grad._version) for grad in grads if grad is not None)


def _found_inf(scaler: Any, *optimizers: Any) -> bool | None:
    """Return whether the scaler found an inf in the last step of an optimizer; None if it has no record."""
    states = getattr(scaler, "_per_optimizer_states", {})
    for optimizer in optimizers:
        if id(optimizer) in states and (found := states[id(optimizer)]["found_inf_per_device"]):
            return any(bool(flag.item()) for flag in found.values())
    return None
