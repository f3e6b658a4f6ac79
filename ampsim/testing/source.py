"""Definitions of a file by name, as text and as code: what a check asks for, with all that this asks for in turn."""

import ast
import inspect
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class Definition:
    """A function, a class or an assignment at the top of a file.

    Attributes:
        node: as it was parsed.
        file: that it stands in.
        names: that it reads.
    """

    node: ast.stmt
    file: Path
    names: frozenset[str]

    @cached_property
    def lines(self) -> list[str]:
        """Its lines, comments and decorators included."""
        decorators = getattr(self.node, "decorator_list", ())
        first = min(each.lineno for each in (self.node, *decorators))
        return self.file.read_text("utf-8").splitlines()[first - 1 : self.node.end_lineno]


@cache
def definitions(file: Path) -> dict[str, Definition]:
    """Return the definitions of a file by name, in their order."""
    found = {}
    for node in ast.parse(file.read_text("utf-8")).body:
        targets = [each.id for each in getattr(node, "targets", ()) if isinstance(each, ast.Name)]
        name = getattr(node, "name", targets[0] if targets else "")
        if name:
            found[name] = Definition(node, file, frozenset(read_by(node)))
    return found


def read_by(node: ast.AST) -> set[str]:
    """Return the names that a part of a program reads."""
    return {
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }


class Words:
    """The functions of an adapter: definitions from several files; the first file with a name wins."""

    def __init__(self, *files: Path) -> None:
        self.files = files
        self._defined: dict[str, Definition] = {}
        for file in files:
            self._defined |= {
                name: each for name, each in definitions(file).items() if name not in self._defined
            }
        self._codes: dict[tuple[str, ...], list[CodeType]] = {}

    def asked(self, names: Iterable[str]) -> dict[str, Definition]:
        """Return the definitions of these names and of all that they read, in the order of the files."""
        return closure(names, self._defined)

    def code(self, names: Sequence[str]) -> list[CodeType]:
        """Return what defines these names where it is executed."""
        key = tuple(names)
        if key not in self._codes:
            self._codes[key] = [
                compile(ast.Module([each.node], []), str(each.file), "exec")
                for each in self.asked(names).values()
            ]
        return self._codes[key]

    @cached_property
    def modules(self) -> dict[str, Any]:
        """What the files import and is installed, by the names that it has there."""
        found: dict[str, Any] = {}
        for file in self.files:
            for node in ast.parse(file.read_text("utf-8")).body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    with suppress(ImportError):
                        exec(compile(ast.Module([node], []), str(file), "exec"), found)  # noqa: S102  our own file
        return found


def closure(names: Iterable[str], defined: dict[str, Definition]) -> dict[str, Definition]:
    """Return those of these names that are defined, and all that they read, in the order of the definitions."""
    wanted, found = [*names], set()
    while wanted:
        name = wanted.pop()
        if name in defined and name not in found:
            found.add(name)
            wanted += defined[name].names
    return {name: each for name, each in defined.items() if name in found}


def body(function: object) -> list[str]:
    """Return the lines of a function behind its docstring, as they stand."""
    file = Path(inspect.getsourcefile(function))  # type: ignore[arg-type]
    (node,) = [each.node for name, each in definitions(file).items() if name == function.__name__]  # type: ignore[attr-defined]
    statements = node.body[1:] if ast.get_docstring(node) else node.body  # type: ignore[attr-defined, arg-type]
    return file.read_text("utf-8").splitlines()[statements[0].lineno - 1 : node.end_lineno]
