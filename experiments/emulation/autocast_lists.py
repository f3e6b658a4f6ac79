"""CUDA's autocast lists on the CPU: which operators run in fp16, in float32, or as their input.

torch has one list per device. A CPU build holds CUDA's too: the names that are registered for the
dispatch key, and in its headers the policy of each name. `cuda_ops` registers for the CPU what
CUDA's list has and the CPU's lacks.

Not modeled: CUDA's operators that promote to the widest input, which no model here calls, and the
kernels themselves.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
KEY = "AutocastCPU"
Bound = dict[str, Any]  # arguments by name


def listed(macro: str) -> set[str]:
    """Return the operators of one policy that all accelerators share, such as `softmax.int`."""
    text = HEADER.read_text(encoding="utf-8").replace("\\\n", "")
    lines = re.findall(rf"#define {macro}\(_\)(.*)", text)
    if not lines:
        raise RuntimeError(
            f"{HEADER} has no {macro}: expected the lists of torch 2.13; install constraints.txt"
        )
    return {
        ".".join(filter(None, pair))
        for pair in re.findall(r"_\((\w+)(?:, *(\w+))?\)", lines[0])
    }


def registered(key: str) -> set[str]:
    """Return the operators that torch registers for a dispatch key."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)  # noqa: SLF001
    return {name.removeprefix("aten::") for name in names}


def cast_to(dtype: torch.dtype) -> Callable[[Bound], Bound]:
    """Return what casts the floating-point tensors among the arguments."""

    def cast(x: Tensor) -> Tensor:
        narrow = x.is_floating_point() and x.dtype is not torch.float64
        return x.to(dtype) if narrow else x

    return lambda bound: tree_map_only(Tensor, cast, bound)


def float32_result(bound: Bound) -> Bound:
    """Ask for a float32 result unless the caller asks for another."""
    return bound if bound.get("dtype") else bound | {"dtype": torch.float32}


POLICIES: dict[str, Callable[[Bound], Bound]] = {
    "AT_FORALL_LOWER_PRECISION_FP": cast_to(torch.float16),
    "AT_FORALL_FP32": cast_to(torch.float32),
    "AT_FORALL_FP32_SET_OPT_DTYPE": float32_result,
}


def below_autocast(name: str, policy: Callable[[Bound], Bound]) -> Callable[..., Any]:
    """Return an operator whose arguments are changed by a policy, as autocast calls it."""
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    names = [argument.name for argument in operator._schema.arguments]  # noqa: SLF001
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)  # noqa: SLF001

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = policy(dict(zip(names, args, strict=False)) | kwargs)
        with torch._C._ExcludeDispatchKeyGuard(autocast):  # noqa: SLF001
            return operator(**bound)

    return call


@contextmanager
def cuda_ops() -> Iterator[None]:
    """Let autocast on the CPU follow CUDA's lists."""
    cpu, cuda = registered(KEY), registered("AutocastCUDA")
    library: Any = torch.library.Library("aten", "IMPL", KEY)  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "Warning only once for all operators"
            )  # "overridden"
            for name in cpu - cuda:
                library.impl(
                    name, torch.library.fallthrough_kernel, allow_override=True
                )
            for macro, policy in POLICIES.items():
                for name in listed(macro) & cuda - cpu:
                    library.impl(name, below_autocast(name, policy))
        yield
    finally:
        library._destroy()  # noqa: SLF001
