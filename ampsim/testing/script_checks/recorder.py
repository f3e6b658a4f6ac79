"""Record what a training script does with its loss scaler.

Theory of operation
-------------------
Plain loops and frameworks end in the same functions of torch: `GradScaler`, `Optimizer.step`, `autograd.backward`,
`clip_grad_norm_`, `LRScheduler.step`, `torch.save`. `Recorder.install` replaces them by functions that add an event
and keep, for each optimizer, what its gradients are multiplied by (`OptimizerTrace.stage`):

    backward of a scaled loss: none -> scaled         unscale_: scaled -> unscaled
    backward of a plain loss:  none -> plain          a step:   any -> used
    backward after unscale_:   unscaled -> mixed      zero_grad: any -> none

A call in the wrong stage is a `Violation`. What needs a comparison of runs is left to `trials`.
"""

import os
import sys
from collections import defaultdict
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

from ampsim.testing.script_checks.patching import Patches
from ampsim.testing.script_checks.trace import (
    OWN,
    Event,
    Kind,
    OptimizerTrace,
    ScalerTrace,
    Violation,
    variables,
    where,
)

CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")
READS = ("item", "__float__", "tolist", "numpy")  # what makes numbers of a tensor
KEEPS = ("detach", "cpu", "mean", "sum")  # what keeps the loss scale in it


class Listener:
    """Is called at the moments of a script; each method does nothing until a subclass overrides it."""

    def before_scale(self) -> None:
        """Hear that a loss is about to be scaled."""

    def after_scale(self, scaled: Any) -> Any:
        """Return the scaled loss that the script gets."""
        return scaled

    def after_backward(self, received: list[OptimizerTrace]) -> None:
        """Hear that gradients of these optimizers have changed."""

    def before_step(self, optimizer: OptimizerTrace) -> None:
        """Hear that an optimizer is about to step."""

    def after_attempt(self, optimizer: OptimizerTrace, *, taken: bool) -> None:
        """Hear that a step was taken or skipped."""

    def after_update(self, scaler: ScalerTrace) -> None:
        """Hear that a scaler was updated."""

    def save_target(self, target: Any) -> Any:
        """Return where a checkpoint is written; None for nowhere."""
        return target


class Recorder:
    """The record of one process.

    Attributes:
        events: All calls, in their order.
        violations: Calls in the wrong order.
        optimizers: By their ids.
        scalers: The enabled ones, by their ids.
        disabled: Where disabled scalers were created.
        saved: By folder, what checkpoints there hold ("optimizer", "scaler"), with the call that saved it.
        loaded: What the script has loaded from checkpoints.
        autocasts: By dtype, where autocast was first entered.
        scale_reads: Where the script reads the loss scale.
        scale_calls: Number of calls of `scale`.
        scales_since_attempt: The same, since the last step.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.events: list[Event] = []
        self.violations: list[Violation] = []
        self.optimizers: dict[int, OptimizerTrace] = {}
        self.scalers: dict[int, ScalerTrace] = {}
        self.disabled: list[str] = []
        self.saved: dict[str, dict[str, Event]] = defaultdict(dict)
        self.loaded: dict[str, Event] = {}
        self.autocasts: dict[str, str] = {}
        self.scale_reads: set[str] = set()
        self.scale_calls = 0
        self.scales_since_attempt = 0
        self._differentiated: set[int] = set()  # scalers whose losses the current backward reaches
        self._stepping: ScalerTrace | None = None
        self._constructing = False  # a learning rate schedule

    def install(self) -> Patches:
        """Patch torch, and return the patches, whose context undoes them."""
        patches = Patches()
        patches.family(torch.amp.GradScaler, lambda cls: self._patch_scaler(patches, cls))
        patches.family(LRScheduler, lambda cls: self._patch_schedule(patches, cls))
        patches.family(Optimizer, lambda cls: self._patch_optimizer(patches, cls))
        patches.function(torch.nn.Module, "zero_grad", "zero_grad", self._zero_grad)
        patches.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        patches.callback(register_optimizer_step_post_hook(self._after_step).remove)
        for name in CLIPS:
            if function := getattr(torch.nn.utils.clip_grad, name, None):
                patches.everywhere(function, "clip", self._clip)
        patches.everywhere(torch.autograd.backward, "backward", self._backward)
        patches.everywhere(torch.save, "save", self._save)
        patches.everywhere(torch.load, "load", self._load)
        autocast = torch.amp.autocast_mode.autocast
        patches.function(autocast, "__enter__", "autocast", self._enter_autocast)
        for name in READS:
            patches.attribute(Tensor, name, self._reading(getattr(Tensor, name)))
        for name in KEEPS:
            patches.attribute(Tensor, name, _keeping_mark(getattr(Tensor, name)))
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

    def last(self, kind: Kind, optimizer: str = "") -> list[Event]:
        """Return the last event of a kind, of an optimizer or of any, in a list; [] if there is none."""
        for event in reversed(self.events):
            if event.kind == kind and (not optimizer or optimizer in event.optimizers):
                return [event]
        return []

    def _add(self, kind: Kind, *optimizers: str, note: str = "") -> Event:
        self.events.append(Event(kind, where(), optimizers, note))
        return self.events[-1]

    def _violated(self, check: str, seen: str, optimizers: str, *events: Event) -> None:
        names = tuple(optimizers.split())
        self.violations.append(Violation(check, seen, names, events))

    # ---------------------------------------------------------------------------------------------------- the scaler

    def _patch_scaler(self, patches: Patches, cls: type) -> None:
        hooks = {
            "__init__": self._made_scaler,
            "scale": self._if_enabled(self._scale),
            "unscale_": self._if_enabled(self._unscale),
            "step": self._if_enabled(self._step),
            "update": self._if_enabled(self._update),
            "load_state_dict": self._if_enabled(self._load_scaler),
            "get_scale": self._get_scale,
        }
        for name, hook in hooks.items():
            patches.function(cls, name, f"scaler.{name}", hook)

    @staticmethod
    def _if_enabled(hook: Callable[..., Any]) -> Callable[..., Any]:
        def checked(original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
            function = hook if scaler.is_enabled() else _plainly
            return function(original, scaler, *args, **kwargs)

        return checked

    def _made_scaler(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
        original(scaler, *args, **kwargs)
        if scaler.is_enabled():
            self.scaler(scaler)
        else:
            self.disabled.append(where())

    def _get_scale(self, original: Any, scaler: Any) -> Any:
        caller = sys._getframe(2).f_code.co_filename
        if not caller.startswith(OWN):
            self.scale_reads.add(where())
        return original(scaler)

    def _scale(self, original: Any, scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        trace = self.scaler(scaler)
        self.listener.before_scale()
        self.scale_calls += 1
        self.scales_since_attempt += 1
        if trace.losses == 0:  # the script's variables that hold it are in reach now
            trace.variables |= variables(scaler)
            for known in self.optimizers.values():
                known.variables |= variables(known.optimizer)
        trace.losses += 1
        scaled = self.listener.after_scale(original(scaler, outputs, *args, **kwargs))
        event = self._add("scale")
        for loss in [scaled] if isinstance(scaled, Tensor) else [*scaled]:
            if isinstance(loss, Tensor) and loss.requires_grad:
                hook = partial(self._reached, id(scaler))
                loss.register_hook(hook)  # type: ignore[no-untyped-call]
                loss._ampsim_scaled = event  # type: ignore[attr-defined]
        return scaled

    def _reached(self, scaler: int, _: Tensor) -> None:
        """Note that a backward pass reaches a loss of a scaler."""
        self._differentiated.add(scaler)

    def _unscale(self, original: Any, scaler: Any, optimizer: Any, *args: Any) -> Any:
        trace, scaler_trace = self.optimizer(optimizer), self.scaler(scaler)
        event = self._add("unscale_", trace.name)
        with self._refusals(event):
            result = original(scaler, optimizer, *args)
        self._check_updates(trace, scaler_trace, event)
        self._check_losses(trace, event)
        self._check_shared(trace, event)
        trace.stage, trace.scaler = "unscaled", scaler_trace
        return result

    @contextmanager
    def _refusals(self, event: Event) -> Iterator[None]:
        """Note an error of the scaler."""
        try:
            yield
        except (RuntimeError, ValueError, AssertionError) as error:
            (name,) = event.optimizers or ("",)
            if not self.violations or self.violations[-1].events[-1].where != event.where:
                seen = f"{event.kind} raises: {error}"
                earlier = self.last("backward", name)
                self._violated("scaler_accepts_each_call", seen, name, *earlier, event)
            raise

    def _check_updates(self, trace: OptimizerTrace, scaler: ScalerTrace, event: Event) -> None:
        is_late = trace.scaler is scaler and trace.updates != scaler.updates
        if trace.stage == "scaled" and is_late:
            seen = f"update() runs between the backward pass of {trace.name} and its step"
            events = (*trace.pending[-1:], event, *self.last("update"))
            self._violated("update_follows_step", seen, trace.name, *events)

    def _check_losses(self, trace: OptimizerTrace, event: Event) -> None:
        if trace.stage == "partly scaled":
            seen = "gradients of a loss that is not scaled are added to scaled ones"
            plain = [backward for backward in trace.pending if backward.note == "plain loss"]
            self._violated("losses_of_a_step_are_scaled", seen, trace.name, event, *plain[:1])

    def _check_shared(self, trace: OptimizerTrace, event: Event) -> None:
        """Find a parameter that the unscale_ of another optimizer has divided already."""
        for other in self.owners(trace.parameters):
            has_divided = other.stage == "unscaled" or any(
                event.is_used and other.name in event.optimizers for event in trace.pending
            )
            if other is not trace and has_divided and trace.stage == "scaled":
                seen = f"a parameter is in {other.name} and in {trace.name}; both divide its gradient by the scale"
                names = f"{other.name} {trace.name}"
                self._violated("gradients_are_divided_once", seen, names, event)

    def _step(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        trace, scaler_trace = self.optimizer(optimizer), self.scaler(scaler)
        event = self._add("step", trace.name)
        self._check_updates(trace, scaler_trace, event)
        if trace.stepped_by not in (None, scaler_trace):
            seen = f"{trace.name} is stepped by another scaler than before: {scaler_trace.name}"
            made = Event("step", scaler_trace.where, note="creates the scaler")
            self._violated("scaler_is_created_once", seen, trace.name, event, made)
        trace.scaler = trace.stepped_by = self._stepping = scaler_trace
        calls = trace.calls
        try:
            with self._refusals(event):
                result = original(scaler, optimizer, *args, **kwargs)
        finally:
            self._stepping = None
        overflowed = _found_inf(scaler, trace.optimizer, optimizer)
        # The scaler's own record decides; a hook does not see an optimizer that is not torch's.
        taken = trace.calls > calls if overflowed is None else not overflowed
        self._attempted(trace, event, taken=taken)
        return result

    def _attempted(self, trace: OptimizerTrace, event: Event, *, taken: bool) -> None:
        self._check_losses(trace, event)
        if trace.stage == "mixed":
            seen = "gradients are added after unscale_ has divided the earlier ones"
            events = (*trace.pending[-1:], *self.last("unscale_", trace.name))
            self._violated("gradients_are_divided_once", seen, trace.name, *events)
        event.note = "taken" if taken else "skipped"
        for backward in trace.pending:
            backward.is_used = True
        trace.pending, trace.clipped, trace.stage = [], [], "used"
        trace.attempts.append(taken)
        self.scales_since_attempt = 0
        self.listener.after_attempt(trace, taken=taken)

    def _update(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        trace = self.scaler(scaler)
        event = self._add("update")
        before = trace.scale
        with self._refusals(event):
            result = original(scaler, *args, **kwargs)
        trace.updates += 1
        event.note = f"scale {before:g} to {trace.scale:g}"
        self.listener.after_update(trace)
        return result

    def _load_scaler(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        self.scaler(scaler).is_loaded = True
        return original(scaler, *args, **kwargs)

    # ------------------------------------------------------------------------------ backward, optimizer, schedule, clip

    def _backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        for trace in self.optimizers.values():
            if all(param.grad is None for param in trace.parameters):
                trace.clear()
        self._differentiated = set()
        event = self._add("backward")
        result = original(*args, **kwargs)
        event.note = "scaled loss" if self._differentiated else "plain loss"
        received = [trace for trace in self.optimizers.values() if _gradients_changed(trace)]
        for trace in received:
            self._arrived(trace, event)
        event.optimizers = tuple(trace.name for trace in received)
        self.listener.after_backward(received)
        return result

    def _arrived(self, trace: OptimizerTrace, event: Event) -> None:
        if trace.first is None:
            trace.first = [param.detach().clone() for param in trace.parameters]
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
        patches.function(cls, "load_state_dict", "optimizer.load", self._load_optimizer)

    def _made_optimizer(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self.optimizer(optimizer)

    def _load_optimizer(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self.optimizer(optimizer).is_loaded = True
        return original(optimizer, *args, **kwargs)

    def _zero_grad(self, original: Any, owner: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(owner, *args, **kwargs)
        is_module = isinstance(owner, torch.nn.Module)
        tensors = [*owner.parameters()] if is_module else self.optimizer(owner).parameters
        for trace in self.owners(tensors):
            # Some wrappers, as accelerate's, clear nothing within an accumulation.
            if not any(param.grad is not None and param.grad.any() for param in trace.parameters):
                self._add("zero_grad", trace.name)
                trace.clear()
        return result

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        trace = self.optimizer(optimizer)
        if self._stepping is None:
            trace.stepped_by = None
            self._add("optimizer.step", trace.name)
        self.listener.before_step(trace)

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        trace = self.optimizer(optimizer)
        found = getattr(optimizer, "found_inf", None)
        taken = found is None or not float(found)  # a fused optimizer is called in a skipped step
        trace.calls += taken
        if self._stepping is None:
            (event,) = self.last("optimizer.step", trace.name)
            self._attempted(trace, event, taken=taken)

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
            self._add("schedule", trace.name, note=type(schedule).__name__)
        return result

    def _clip(self, original: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [parameters] if isinstance(parameters, Tensor) else [*parameters]
        traces = self.owners(tensors)
        name = original.__name__
        event = self._add("clip", *(trace.name for trace in traces), note=name)
        threshold = args[0] if args else kwargs.get("max_norm", kwargs.get("clip_value"))
        event.value = None if threshold is None else float(threshold)
        for trace in traces:
            self._check_clip(trace, event, name)
        return original(tensors, *args, **kwargs)

    def _check_clip(self, trace: OptimizerTrace, event: Event, name: str) -> None:
        before = trace.pending[-1:]
        if trace.stage in ("scaled", "partly scaled", "mixed"):
            seen = f"{name} gets gradients of {trace.name} that are multiplied by the loss scale"
            self._violated(
                "gradients_are_unscaled_before_clipping", seen, trace.name, *before, event
            )
        elif trace.stage == "used" and trace.attempts:
            seen = f"{name} runs after the step of {trace.name}, which has used the gradients"
            step = self.last("step", trace.name) or self.last("optimizer.step", trace.name)
            self._violated("clipping_precedes_step", seen, trace.name, *step, event)
        elif trace.clipped and before and before[0] is not trace.clipped[-1]:
            seen = (
                f"{name} clips the gradients of {trace.name} after each of several backward passes"
            )
            self._violated("gradients_are_clipped_once_per_step", seen, trace.name, event)
        trace.clipped += before

    # ------------------------------------------------------------------------------------------- files and numbers

    def _save(self, original: Any, value: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        kinds = state_kinds(value)
        event = self._add("save", note=" and ".join(sorted(kinds)))
        is_path = isinstance(target, (str, os.PathLike))
        place = os.path.dirname(os.path.abspath(target)) if is_path else event.where
        for kind in kinds:
            self.saved[place].setdefault(kind, event)
        if (redirected := self.listener.save_target(target)) is not None:
            original(value, redirected, *args, **kwargs)

    def _load(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        event = self._add("load")
        for kind in state_kinds(value):
            self.loaded.setdefault(kind, event)
        return value

    def _reading(self, original: Any) -> Any:
        """Return a function that notes where the value of a scaled loss becomes a number."""

        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            event = getattr(tensor, "_ampsim_scaled", None)
            if event is not None:
                seen = "the scaled loss is read as a number"
                self._violated("logged_loss_is_unscaled", seen, "", event, self._add("read"))
            return original(tensor, *args, **kwargs)

        return read

    def _enter_autocast(self, original: Any, context: Any) -> Any:
        dtype = context.fast_dtype if getattr(context, "_enabled", False) else None
        dtype = getattr(
            context, "_ampsim_dtype", dtype
        )  # on the CPU, what the script has asked for
        if dtype is not None and torch.is_grad_enabled():
            self.autocasts.setdefault(str(dtype), where())
        return original(context)


def state_kinds(value: Any, depth: int = 0) -> set[str]:
    """Return which of "optimizer" and "scaler" have their state in a checkpoint."""
    if isinstance(value, dict):
        if {"state", "param_groups"} <= value.keys():
            return {"optimizer"}
        if {"scale", "growth_factor", "backoff_factor"} <= value.keys():
            return {"scaler"}
        value = [*value.values()]
    if not isinstance(value, (list, tuple)) or depth > 3 or len(value) > 500:
        return set()
    return set().union(*(state_kinds(item, depth + 1) for item in value))


def _plainly(original: Any, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs)


def _gradients_changed(trace: OptimizerTrace) -> bool:
    """Return whether a gradient has changed since the last backward pass."""
    grads = (param.grad for param in trace.parameters)
    versions = tuple((id(grad), grad._version) for grad in grads if grad is not None)
    changed = versions != trace.versions
    trace.versions = versions
    return changed


def _found_inf(scaler: Any, *optimizers: Any) -> bool | None:
    """Return whether the scaler found an inf in the last step of an optimizer; None if it has no record."""
    states = getattr(scaler, "_per_optimizer_states", {})
    for optimizer in optimizers:
        if id(optimizer) in states and (found := states[id(optimizer)]["found_inf_per_device"]):
            return any(bool(flag.item()) for flag in found.values())
    return None


def _keeping_mark(original: Any) -> Any:
    """Return a method of a tensor that keeps the mark of a scaled loss."""

    def marked(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = original(tensor, *args, **kwargs)
        if (event := getattr(tensor, "_ampsim_scaled", None)) is not None:
            result._ampsim_scaled = event  # type: ignore[attr-defined]
        return result

    return marked
