"""Keeps torch.compile out of the scaler, as torch keeps it out of its own.

A compiled training step calls the scaler between graphs. Its methods wait, lock, and read flags,
which a graph cannot contain: compiling them would add a graph break per method. torch keeps a list
of its own files to skip; this module marks ampsim's functions one by one, without importing the
compiler.
"""

import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch._C._dynamo import eval_frame


def leave_alone_package(name: str) -> None:
    """Exclude the functions of a package's loaded modules from torch.compile.

    It marks each function object, so that dynamo does not inline it, and its code and that of the
    functions nested in it, so that dynamo does not compile their frames.

    Functions that they call, such as the optimizer's step, are still compiled if possible.
    """
    for key, module in [*sys.modules.items()]:
        if key.partition(".")[0] == name:
            for function in _functions(vars(module), key):
                function._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001
                _skip(function.__code__)


def _skip(code: types.CodeType) -> None:
    """Do what ``torch._dynamo.eval_frame.skip_code`` does, to avoid graph breaks."""
    for inner in code.co_consts:  # a nested function has its own frame
        if isinstance(inner, types.CodeType):
            _skip(inner)
    if hasattr(eval_frame, "set_code_exec_strategy"):
        action = eval_frame._FrameAction  # noqa: SLF001
        alone = eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)  # noqa: SLF001
        eval_frame.set_code_exec_strategy(code, alone)


def _functions(
    namespace: Mapping[str, object], module: str
) -> Iterator[types.FunctionType]:
    """Yield the functions and methods that a module defines, also decorated ones."""
    for value in namespace.values():
        if getattr(value, "__module__", module) != module:
            continue
        if isinstance(value, type):
            yield from _functions(vars(value), module)
        function: Any = value
        # A property, a class method or static method, and a decorated function have it inside.
        for inner in ("fget", "__func__", "__wrapped__"):
            function = getattr(function, inner, function)
        if isinstance(function, types.FunctionType):
            yield function
