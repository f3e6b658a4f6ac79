"""What source code says, without running it: constants, functions, and the expression behind a number."""

import ast
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from types import FunctionType


@functools.cache
def parse(text: str) -> ast.Module:
    """Return the syntax tree of a text."""
    return ast.parse(text)


def tree(path: Path) -> ast.Module:
    """Return a file's syntax tree; an empty one if there is no such file."""
    return parse(path.read_text(encoding="utf-8") if path.exists() else "")


def strings(path: Path, name: str) -> tuple[str, ...]:
    """Return the strings in a module's constant; none if it has no constant of this name."""
    for node in tree(path).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return tuple(ast.literal_eval(node.value))
    return ()


def source_of(function: Callable[..., object]) -> str:
    """Return the name of a function; of a lambda its expression, with the values of the names that it closes over."""
    if not isinstance(function, FunctionType) or function.__name__ != "<lambda>":
        return f"{function.__module__}.{function.__qualname__}"
    (found,) = _lambdas(Path(inspect.getfile(function)))[function.__code__.co_firstlineno]  # one per line
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    closed_over = dict(zip(function.__code__.co_freevars, cells, strict=True))
    return ast.unparse(_Substitute(closed_over).visit(ast.parse(ast.unparse(found.body), mode="eval")))


@functools.cache
def _lambdas(path: Path) -> dict[int, list[ast.Lambda]]:
    """Return the lambdas of a file that no other lambda contains, by line."""
    every = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Lambda)]
    inner = {id(below) for node in every for below in ast.walk(node.body)}
    by_line: dict[int, list[ast.Lambda]] = {}
    for node in every:
        if id(node) not in inner:
            by_line.setdefault(node.lineno, []).append(node)
    return by_line


class _Substitute(ast.NodeTransformer):
    """A replacement of names by plain values."""

    def __init__(self, values: dict[str, object]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self.values.get(node.id)
        return ast.Constant(value) if isinstance(value, str | int | float) else node
