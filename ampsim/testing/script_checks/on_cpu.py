"""Run a script that asks for CUDA on the CPU.

Loss scaling is a protocol of calls, and the protocol is the same on the CPU. Kernels, streams,
memory, and speed are not. A ``torch.device("cuda")`` stays what it is, so that frameworks choose
fp16; each tensor is put on the CPU.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from inspect import isclass, isfunction
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode

REPLACED = (
    "on the CPU: CUDA devices and streams are replaced, and DataParallel and "
    "DistributedDataParallel have one device"
)
WITHOUT_AUTOCAST = "on the CPU: autocast is off"
# function of torch.cuda -> what it returns; any other one returns `Nothing`
ANSWERS: dict[str, Any] = {
    "is_available": True,
    "is_initialized": True,
    "is_bf16_supported": False,
    "device_count": 1,
    "current_device": 0,
    "get_device_capability": (7, 0),
    "get_device_name": "CPU",
    "get_device_properties": SimpleNamespace(
        name="CPU", major=7, minor=0, total_memory=2**34
    ),
    "mem_get_info": (2**34, 2**34),
    "get_rng_state": torch.get_rng_state(),
    "get_rng_state_all": [torch.get_rng_state()],
}
# Parts of torch.cuda that stay: autocast and scalers work on the CPU. A graph is replayed without
# its Python code, so that only a CUDA device can run it.
KEPT = ("torch.cuda.amp", "torch.cuda.graphs")
IGNORED = ("cuda", "pin_memory", "record_stream")  # methods of a tensor that return it
DEVICE_AT = {"to": 1, "_parse_to": 0}  # where a bare number is a device, as in .to(0)


class OnCPU(TorchFunctionMode):
    """Replaces the device "cuda" by "cpu" in each call of torch except `torch.device`."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name == "device":
            return function(*args, **(kwargs or {}))
        if name in IGNORED:
            return args[0]
        place = DEVICE_AT.get(name, len(args))
        if place < len(args) and is_number(args[place]):
            args = (*args[:place], "cpu", *args[place + 1 :])
        named = {key: to_cpu(value) for key, value in (kwargs or {}).items()}
        if is_number(named.get("device")):
            named["device"] = "cpu"
        return function(*map(to_cpu, args), **named)


class SingleDevice(torch.nn.Module):
    """DataParallel or DistributedDataParallel on one device: a module that has the model as
    `module`.
    """

    def __init__(self, module: torch.nn.Module, *_: Any, **__: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self.module(*args, **kwargs)

    def no_sync(self) -> ExitStack:
        """Return a context that does nothing."""
        return ExitStack()


class Generator(torch.Generator):
    """A generator of random numbers on the CPU, whichever device is asked for."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make one on the CPU."""
        return super().__new__(cls)


class Nothing(int):
    """What a stream, an event, a context, or a number of bytes of CUDA is on the CPU: 0, and an
    object whose methods do nothing.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make it of any arguments."""
        return super().__new__(cls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> Self:
        return self

    def __getitem__(self, _: object) -> Self:
        return self

    def __getattr__(self, name: str) -> Self:
        if name.startswith("__"):  # a protocol that it does not have
            raise AttributeError(name)
        return self

    def query(self) -> bool:
        """Return whether the work before an event is done, which a script may wait for."""
        return True


def _loading_on_cpu(load: Callable[..., Any]) -> Callable[..., Any]:
    def load_on_cpu(file: Any, map_location: Any = None, **kwargs: Any) -> Any:
        return load(file, map_location="cpu", **kwargs)

    return load_on_cpu


def is_number(value: Any) -> bool:
    """Return whether a value is the number of a device, as `Nothing` is, too."""
    return isinstance(value, int) and not isinstance(value, bool)


def to_cpu(value: Any) -> Any:
    """Return "cpu" for a device of CUDA, and anything else as it is."""
    is_device = isinstance(value, torch.device) and value.type == "cuda"
    is_name = isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))
    return "cpu" if is_device or is_name else value


def enter(*, autocast: bool) -> None:
    """Replace CUDA by the CPU for the rest of the process.

    Args:
        autocast: Whether autocast stays on; fp16 is slow on the CPU, and some kernels lack it.
    """
    OnCPU().__enter__()  # type: ignore[no-untyped-call]
    for name, module in [*sys.modules.items()]:
        if name.startswith("torch.cuda") and not name.startswith(KEPT):
            _replace_members(module)
    _set(torch, "Generator", Generator)
    _set(torch.nn.Module, "cuda", lambda module, *_: module)
    for module in (torch.nn, torch.nn.parallel):
        _set(module, "DataParallel", SingleDevice)
        _set(module, "DistributedDataParallel", SingleDevice)
    _set(torch.multiprocessing, "spawn", _called_here)
    _set(torch, "load", _loading_on_cpu(torch.load))
    unchanged = staticmethod(lambda module, *_: module)
    _set(torch.nn.SyncBatchNorm, "convert_sync_batchnorm", unchanged)
    _replace_amp(autocast=autocast)
    _replace_process_group()


def _replace_members(module: Any) -> None:
    """Replace the public functions and classes of a module of torch.cuda."""
    for name, value in [*vars(module).items()]:
        origin = getattr(value, "__module__", None) or ""
        is_public = name == "_lazy_init" or not name.startswith("_")
        if not (is_public and origin.startswith("torch.cuda")) or origin.startswith(
            KEPT
        ):
            continue
        if isfunction(value):
            _set(module, name, _answering(ANSWERS.get(name, Nothing())))
        elif isclass(value) and not issubclass(value, BaseException):
            # torch.FloatTensor is the twin of torch.cuda.FloatTensor.
            has_twin = name.endswith(("Tensor", "Storage"))
            _set(module, name, getattr(torch, name) if has_twin else Nothing)


def _set(owner: Any, name: str, value: object) -> None:
    setattr(owner, name, value)


def _answering(answer: object) -> Callable[..., object]:
    return lambda *_, **__: answer


def _called_here(function: Any, args: Any = (), nprocs: int = 1, **_: Any) -> None:
    """Replace `torch.multiprocessing.spawn`: call the function for rank 0."""
    function(0, *args)


def _replace_amp(*, autocast: bool) -> None:
    cls = torch.amp.autocast_mode.autocast
    make_autocast = cls.__init__
    make_scaler = torch.amp.GradScaler.__init__

    def init_autocast(
        self: Any,
        device_type: Any,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: Any = None,
    ) -> None:
        default = torch.float16 if str(device_type).startswith("cuda") else None
        wanted = dtype or default
        make_autocast(
            self, to_cpu(device_type), wanted, enabled and autocast, cache_enabled
        )

    def init_scaler(self: Any, device: Any = "cuda", *args: Any, **kwargs: Any) -> None:
        make_scaler(self, to_cpu(device), *args, **kwargs)

    _set(cls, "__init__", init_autocast)
    _set(torch.amp.GradScaler, "__init__", init_scaler)


def _replace_process_group() -> None:
    if not torch.distributed.is_available():
        return
    make_group = torch.distributed.init_process_group

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        kwargs = {key: value for key, value in kwargs.items() if key != "device_id"}
        make_group("gloo" if backend == "nccl" else backend, *args, **kwargs)

    _set(torch.distributed, "init_process_group", init_process_group)
