"""Keeps torch.compile out of the scaler, as torch keeps it out of its own.

A compiled training step calls the scaler between graphs. Its methods wait, lock, and read flags,
which a graph cannot contain: compiling them would add a graph break per method. torch keeps a list
of its own files to skip; this module
marks ampsim's functions one by one, without importing the compiler.
"""

import sys
import types
from collections.abc import Iterable, Iterator

from torch._C._dynamo import eval_frame


def leave_alone_package(name: str) -> None:
    """Exclude the functions of a package's loaded modules from torch.compile.

    Functions that they call, such as the optimizer's step, are still compiled if possible.
    """
    modules = [
        module
        for key, module in [*sys.modules.items()]
        if key == name or key.startswith(f"{name}.")
    ]
    for module in modules:
        for function in _functions(vars(module).values(), module.__name__):
            # not inlined
            function._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001
            _skip(function.__code__)  # nor compiled when it is called


def _skip(code: types.CodeType) -> None:
    """Do what ``torch._dynamo.eval_frame.skip_code`` does, to avoid graph breaks."""
    for inner in code.co_consts:  # a nested function has its own frame
        if isinstance(inner, types.CodeType):
            _skip(inner)
    if hasattr(eval_frame, "set_code_exec_strategy"):
        action = eval_frame._FrameAction  # noqa: SLF001
        alone = eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)  # noqa: SLF001
        eval_frame.set_code_exec_strategy(code, alone)


def _functions(values: Iterable[object], name: str) -> Iterator[types.FunctionType]:
    """Yield the functions and methods that a module defines, including decorated ones."""
    for value in values:
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if isinstance(value, property):
            value = value.fget
        if isinstance(value, type) and value.__module__ == name:
            yield from _functions(vars(value).values(), name)
        while getattr(value, "__module__", None) == name:  # a cache wraps a function
            if isinstance(value, types.FunctionType):
                yield value
            value = getattr(value, "__wrapped__", None)
