"""Keeps torch.compile out of the scaler, as torch keeps it out of its own.

A compiled training step calls the scaler between graphs. Its methods wait, lock and read flags, which no
graph holds; if the compiler tried them it would split the step once more in each. torch has a list of its
own files that are left alone; ours are marked here, function by function, without importing the compiler.
"""

import sys
import types
from collections.abc import Iterable, Iterator

from torch._C._dynamo import eval_frame


def leave_alone_package(name: str) -> None:
    """Have torch.compile run every function of a package's loaded modules as plain Python.

    What they call is compiled where it can be, as torch's optimizers are that a scaler steps.
    """
    modules = [
        module
        for key, module in [*sys.modules.items()]
        if key == name or key.startswith(f"{name}.")
    ]
    for module in modules:
        for function in _functions(vars(module).values(), module.__name__):
            function._torchdynamo_disable = True  # type: ignore[attr-defined] # noqa: SLF001 - not inlined
            _skip(function.__code__)  # nor compiled when it is called


def _skip(code: types.CodeType) -> None:
    """Do what ``torch._dynamo.eval_frame.skip_code`` does; where torch has no such call, a step splits more often."""
    for inner in code.co_consts:  # a function that is defined in this one has a frame of its own
        if isinstance(inner, types.CodeType):
            _skip(inner)
    if hasattr(eval_frame, "set_code_exec_strategy"):
        action = eval_frame._FrameAction  # noqa: SLF001
        alone = eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)  # noqa: SLF001
        eval_frame.set_code_exec_strategy(code, alone)


def _functions(values: Iterable[object], name: str) -> Iterator[types.FunctionType]:
    """Iterate over the functions and methods that a module defines, under their decorators too."""
    for value in values:
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if isinstance(value, property):
            value = value.fget
        if isinstance(value, type) and value.__module__ == name:
            yield from _functions(vars(value).values(), name)
        while getattr(value, "__module__", None) == name:  # a cache is no function, but wraps one
            if isinstance(value, types.FunctionType):
                yield value
            value = getattr(value, "__wrapped__", None)
