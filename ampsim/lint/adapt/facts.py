"""What a file says of the things that its loops use: imports, numbers, and how optimizers are made."""

import ast
import re
from collections.abc import Iterator

from ampsim.lint.names import leaf, name_of
from ampsim.lint.source import Function, Source

_OPTIMIZERS = re.compile(r"(^|\.)(SGD|Adam|AdamW|RMSprop|NAdam|RAdam|Adagrad|Adamax)$")


def line_of(name: str, what: str) -> str:
    """Return the line that imports a name: of a module, or from one."""
    module, _, last = what.rpartition(".")
    if what == name:
        return f"import {what}"
    return f"from {module} import {last}" + f" as {name}" * (last != name) if module else f"import {what} as {name}"


def literals(source: Source) -> dict[str, tuple[str, int]]:
    """Return the numbers that a file gives to names, as text with the line: assigned, or as defaults."""
    found: dict[str, tuple[str, int]] = {}
    for name, value in (pair for node in source.nodes for pair in _given(node)):
        if isinstance(value, ast.Constant) and isinstance(value.value, int | float | None):
            found.setdefault(name, (repr(value.value), value.lineno))
    return found


def _given(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """Yield names and what a node gives to them."""
    match node:
        case ast.Call(
            func=ast.Attribute(attr="add_argument"), args=[*_, ast.Constant(value=str(flag))], keywords=words
        ):
            given = (each.value for each in words if each.arg == "default")
            yield from ((flag.lstrip("-").replace("-", "_"), value) for value in given)
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(targets) == len(values):
            yield from ((leaf(name_of(target)), value) for target, value in zip(targets, values, strict=True))
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value):
            yield leaf(name_of(target)), value
        case ast.AnnAssign(target=target, value=value):
            yield leaf(name_of(target)), value
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from defaults(node).items()


def defaults(function: Function) -> dict[str, ast.expr | None]:
    """Return the defaults of a function's parameters, by name."""
    given = function.args
    names = reversed([*given.posonlyargs, *given.args])
    pairs = [*zip(names, reversed(given.defaults), strict=False)]
    return {arg.arg: value for arg, value in [*pairs, *zip(given.kwonlyargs, given.kw_defaults, strict=True)]}


def optimizer(source: Source, name: str) -> tuple[str, int, str]:
    """Return the class of torch that an optimizer is made of, the line, and the call; SGD, 0 and "" if not seen."""
    for node in source.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = _OPTIMIZERS.search(name_of(node.value.func))
            if made and any(leaf(name_of(target)) == name for target in node.targets):
                return made[2], node.lineno, ast.unparse(node.value)
    return "SGD", 0, ""
