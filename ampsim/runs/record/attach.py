"""Attach a watcher to a scaler of ampsim or torch, or to optimizers."""

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

Flags = list[tuple[Optimizer, list[Tensor]]]
Detach = Callable[[], None]

_ATTACHED = "_ampsim_attached"  # attribute of torch's scaler that holds its watcher


class Watcher(Protocol):
    """Observer of each step; `key` is one object per iteration."""

    def gradients(self, key: Any, optimizer: Optimizer, scale: Tensor) -> None:
        """Read complete gradients, still multiplied by `scale` of shape (), which may change
        afterwards.

        Later calls with the same key and optimizer are ignored.
        """

    def stepping(self, optimizer: Optimizer) -> None:
        """Note an optimizer step, which a scaler may have turned into none."""

    def closing(self, key: Any) -> None:
        """Note the end of the iteration."""

    def closed(self, key: Any, flags: Flags) -> None:
        """Read each optimizer's flags, 0.0 or 1.0; none if no scaler checks them."""


def attach(watcher: Watcher, optimizers: Sequence[Optimizer], scaler: Any) -> Detach:
    """Attach a watcher.

    Returns:
        Function that detaches the watcher; idempotent.

    Raises:
        TypeError: If `scaler` is no scaler.
        ValueError: If the scaler is already watched.
    """
    if scaler is not None and not hasattr(scaler, "is_enabled"):
        raise TypeError(
            f"scaler={scaler!r}: expected an ampsim.torch.GradScaler, a torch.amp.GradScaler, or "
            "None; with Lightning pass trainer.precision_plugin.scaler"
        )
    if scaler is None or not scaler.is_enabled():
        return _attach_to_optimizers(watcher, optimizers)
    with ExitStack() as detach:
        if hasattr(scaler, "observe"):  # `ampsim.torch.AsyncGradScaler`
            detach.callback(scaler.observe(watcher))
            detach.callback(scaler.synchronize)
        elif isinstance(scaler, torch.amp.GradScaler):
            detach.callback(_attach_to_torch(watcher, scaler))
        else:
            raise TypeError(
                f"a {type(scaler).__name__}: expected a scaler that inherits from torch.amp.GradScaler"
            )
        for optimizer in optimizers:
            if isinstance(optimizer, Optimizer):
                hook = optimizer.register_step_pre_hook(
                    lambda stepped, *_: watcher.stepping(stepped)
                )
                detach.callback(hook.remove)
        return detach.pop_all().close


# ----------------------------------------------------------------------------------- torch's scaler


class _Attached:
    """A watcher of one scaler, with the state of the current iteration."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.begin()

    def begin(self) -> None:
        self.key = object()
        self.optimizers: dict[int, Optimizer] = {}

    def look(self, scaler: Any, optimizer: Optimizer) -> None:
        """Report gradients that are not yet divided."""
        state = scaler._per_optimizer_states.get(id(optimizer))  # noqa: SLF001
        ready = state is None or state["stage"].name == "READY"
        if ready and scaler._scale is not None:  # noqa: SLF001
            self.optimizers[id(optimizer)] = optimizer
            self.watcher.gradients(self.key, optimizer, scaler._scale)  # noqa: SLF001

    def found(self, scaler: Any) -> Flags:
        states = scaler._per_optimizer_states  # noqa: SLF001
        return [
            (
                optimizer,
                [
                    flag.clone()
                    for flag in states[number]["found_inf_per_device"].values()
                ],
            )
            for number, optimizer in self.optimizers.items()
        ]


def _attach_to_torch(watcher: Watcher, scaler: torch.amp.GradScaler) -> Detach:
    """Make the scaler an instance of a subclass of its class that reports to the watcher."""
    if hasattr(scaler, _ATTACHED):
        raise ValueError(
            f"this {type(scaler).__name__} is already watched: close the other run first"
        )
    kind: Any = type(scaler)
    setattr(scaler, _ATTACHED, _Attached(watcher))
    scaler.__class__ = _watched(kind)

    def detach() -> None:
        scaler.__class__ = kind
        delattr(scaler, _ATTACHED)

    return detach


@functools.cache
def _watched(kind: Any) -> Any:
    """Return a subclass of a scaler's class that reports to its watcher, with the same name and
    pickle.
    """

    def looking(name: str) -> Any:
        """Return a method that reports the gradients of its optimizer first."""
        method = getattr(kind, name)

        @functools.wraps(method)
        def look(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            getattr(self, _ATTACHED).look(self, optimizer)
            return method(self, optimizer, *args, **kwargs)

        return look

    def update(self: Any, *args: Any, **kwargs: Any) -> None:
        attached: _Attached = getattr(self, _ATTACHED)
        found = attached.found(self)
        kind.update(self, *args, **kwargs)
        key = attached.key
        attached.begin()
        attached.watcher.closing(key)
        attached.watcher.closed(key, found)

    def __reduce_ex__(self: Any, _protocol: Any) -> Any:  # noqa: N807
        plain = object.__new__(kind)
        vars(plain).update(
            {name: value for name, value in vars(self).items() if name != _ATTACHED}
        )
        return plain.__reduce_ex__(
            0
        )  # later protocols require the class of the pickled object

    members: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "update": update,
        "__reduce_ex__": __reduce_ex__,
    }
    dividing = (
        "unscale_",
        "unscale_and_clip_",
        "step",
    )  # the second is that of ampsim.torch
    members |= {name: looking(name) for name in dividing if hasattr(kind, name)}
    return type(kind.__name__, (kind,), members)


# ---------------------------------------------------------------------------------------- no scaler


class _Steps:
    """Steps of optimizers: an iteration ends with the last optimizer, or if one steps again."""

    def __init__(self, watcher: Watcher, last: Optimizer) -> None:
        self.watcher, self.last = watcher, last
        self.begin()

    def begin(self) -> None:
        self.key = object()
        self.stepped: list[Optimizer] = []

    def before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if any(optimizer is stepped for stepped in self.stepped):
            self.end()
        self.stepped.append(optimizer)
        given = getattr(optimizer, "grad_scale", None)  # if set, the fused step divides
        scale = torch.ones(()) if given is None else given.detach().clone()
        return _when_complete(
            functools.partial(self.watcher.gradients, self.key, optimizer, scale),
            args,
            kwargs,
        )

    def after(self, optimizer: Optimizer, *_: Any) -> None:
        self.watcher.stepping(optimizer)
        if optimizer is self.last:
            self.end()

    def end(self) -> None:
        key, found = (
            self.key,
            [(optimizer, list[Tensor]()) for optimizer in self.stepped],
        )
        self.begin()
        self.watcher.closing(key)
        self.watcher.closed(key, found)


def _attach_to_optimizers(watcher: Watcher, optimizers: Sequence[Optimizer]) -> Detach:
    steps, detach = _Steps(watcher, optimizers[-1]), ExitStack()
    detach.callback(steps.end)  # after the hooks are removed
    for optimizer in optimizers:
        detach.callback(optimizer.register_step_pre_hook(steps.before).remove)
        detach.callback(optimizer.register_step_post_hook(steps.after).remove)
    return detach.close


def _when_complete(
    read: Callable[[], None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Read gradients now, or after the closure; return new arguments of the step, None if
    unchanged.
    """
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        return read()

    def complete(*inputs: Any, **options: Any) -> Any:
        result = closure(*inputs, **options)
        read()  # only the first of several calls counts
        return result

    return args[:1], {**kwargs, "closure": complete}
