"""What the sources of a script save and load of its optimizer and its scaler, also where the run does not get to.

A function counts if its name is read by code that runs: that of the script and its modules, and of functions that
count. This finds no function that a framework calls, as a hook.
"""

import ast
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ampsim.testing.lines import STANDARD, shown

AMPSIM = str(Path(__file__).parents[2])
OPTIMIZER = re.compile("^opt|optim|_opt", re.IGNORECASE)  # in the name of an optimizer
SCALER = re.compile("scal|amp", re.IGNORECASE)  # in the name of a scaler that a helper knows


@dataclass(frozen=True)
class Call:
    """A call of a method, as ``self.optimizer.state_dict()``.

    Attributes:
        owner: Last name of what it is called on, as "optimizer".
        where: file:line.
    """

    owner: str
    where: str


@dataclass
class Function:
    """A function, or the code of a module outside its functions, whose name is "".

    Attributes:
        name: Without its class and module.
        names: That it reads.
        saves: Calls of ``state_dict``.
        loads: Calls of ``load_state_dict``.
    """

    name: str
    names: set[str]
    saves: list[Call]
    loads: list[Call]

    @property
    def writes(self) -> bool:
        """Whether it calls something that saves, by its name."""
        return any("save" in name.lower() for name in {self.name, *self.names})


def unsaved_scaler(files: Sequence[Path], scalers: Collection[str]) -> str:
    """Return where the sources save an optimizer's state, if they save no scaler's; "" otherwise.

    Args:
        files: The sources.
        scalers: Names of variables that hold a scaler.
    """
    functions = [function for file in files for function in read_functions(file)]
    writing = [call for each in _running(functions) if each.writes for call in each.saves]
    return _without_scaler(writing, functions, "saves", scalers)


def unloaded_scaler(files: Sequence[Path], scalers: Collection[str]) -> str:
    """Return where the sources load an optimizer's state, if they load no scaler's; see `unsaved_scaler`."""
    functions = [function for file in files for function in read_functions(file)]
    loading = [call for each in functions for call in each.loads]
    return _without_scaler(loading, functions, "loads", scalers)


def _without_scaler(
    calls: Collection[Call],
    functions: Collection[Function],
    kind: str,
    scalers: Collection[str],
) -> str:
    owners = [call.owner for function in functions for call in getattr(function, kind)]
    if any(owner in scalers or SCALER.search(owner) for owner in owners):
        return ""
    return next((call.where for call in calls if OPTIMIZER.search(call.owner)), "")


def own_files() -> list[Path]:
    """Return the files of the script and of its own modules."""
    names = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    paths = {Path(name).resolve() for name in [*names, sys.argv[0]] if isinstance(name, str)}
    return sorted(path for path in paths if _is_own(path))


def _is_own(path: Path) -> bool:
    is_packaged = "-packages" in str(path) or str(path).startswith((STANDARD, AMPSIM))
    return path.suffix == ".py" and not is_packaged


def read_functions(file: Path) -> Iterator[Function]:
    """Yield the functions of a file, and its code outside them; nothing if it cannot be read."""
    try:
        tree = ast.parse(file.read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    outside = Function("", set(), [], [])
    is_script = file == Path(sys.argv[0]).resolve()
    yield outside
    waiting: list[tuple[ast.AST, Function]] = [(tree, outside)]
    while waiting:
        node, owner = waiting.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                owner = Function(name, set(), [], [])
                yield owner
            case ast.If(test=test) if not is_script and "__name__" in ast.unparse(test):
                continue  # this file is not run as a script
            case ast.Call(func=ast.Attribute(value=value, attr=attr)):
                call = Call(_last_name(value), f"{shown(str(file))}:{node.lineno}")
                owner.saves += [call] * (attr == "state_dict")
                owner.loads += [call] * (attr == "load_state_dict")
            case ast.Name(id=name):
                owner.names.add(name)
        if isinstance(node, ast.Attribute):
            owner.names.add(node.attr)
        waiting += [(child, owner) for child in ast.iter_child_nodes(node)]


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _running(functions: Collection[Function]) -> list[Function]:
    """Return the functions whose names are read by code that runs."""
    running = [function for function in functions if not function.name]
    waiting = [function for function in functions if function.name]
    names = set[str]()
    while True:
        names |= {name for function in running for name in function.names}
        # Python itself calls those with underscores, and torch calls forward.
        reached = [f for f in waiting if f.name in names or f.name.startswith("__")]
        if not reached:
            return running
        running += reached
        waiting = [function for function in waiting if function not in reached]
