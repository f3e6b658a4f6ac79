"""The source of what drives a peer, as a test needs it: one class, without what only describes the peer.

Whether it still drives the peer is seen: each test is run where the peer is, and must fail there.
"""

import ast
import copy
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ampsim.peers.peer import Peer
from ampsim.testing.source import Definition, closure, definitions, read_by

Pieces = dict[str, Any]
"""Definitions by name."""

STEP = 'Step = namedtuple("Step", "used stepped unscaled scale")'
_ABOUT = {*inspect.get_annotations(Peer)}  # what describes a peer
_EARLY = ("torch", "jax", "jax.numpy")  # imports that wait for nothing which a driver prepares


def driver_of(peer: type[Peer], test: str) -> tuple[list[str], list[str]]:
    """Return the definitions that a test of a peer begins with, and the lines that import what they use.

    Args:
        peer: its class, not a `Remote`.
        test: the rest of the file, which names what it calls.
    """
    files = _files(peer)
    bare = {name: _Bare().visit(copy.deepcopy(each.node)) for file in files for name, each in definitions(file).items()}
    pieces = flat(peer, _reached([peer.__name__], bare))
    early = hoist(pieces)
    prune(pieces, test)
    pieces = _reached([peer.__name__], pieces)
    texts = [STEP, *(ast.unparse(ast.fix_missing_locations(node)) for node in pieces.values())]
    return texts, [*early, *_imports(files, "\n".join([*texts, test]))]


def _files(peer: type[Peer]) -> list[Path]:
    """Return the files of `ampsim.peers.frameworks` that a peer is made of, its own one last."""
    own = Path(inspect.getfile(peer))
    shared = re.findall(r"^from ampsim\.peers\.frameworks\.(\w+) import", own.read_text("utf-8"), re.MULTILINE)
    return [*(own.with_name(f"{name}.py") for name in shared), own]


def _reached(names: Iterable[str], pieces: Pieces) -> Pieces:
    """Return the pieces of these names, and all that they read."""
    read = {name: Definition(node, Path(), frozenset(read_by(node))) for name, node in pieces.items()}
    return {name: each.node for name, each in closure(names, read).items()}


class _Bare(ast.NodeTransformer):
    """Leaves out docstrings, annotations, and what describes a peer."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [each for each in node.body if not self._describes(each)] or [ast.Pass()]
        node.bases = [each for each in node.bases if ast.unparse(each) != "Peer"]
        self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.Pass()
        return ast.Assign([node.target], node.value, lineno=node.lineno)

    @staticmethod
    def _describes(node: ast.stmt) -> bool:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return True
        if isinstance(node, ast.AnnAssign) and node.value is None:
            return True
        return bool(names := _targets(node)) and names <= _ABOUT


def flat(peer: type, pieces: Pieces) -> Pieces:
    """Return pieces with the peer's class and those that it derives from as one; as they are where that cannot be."""
    *bases, own = (pieces[each.__name__] for each in reversed(peer.__mro__) if each.__name__ in pieces)
    body: dict[str, ast.stmt] = {}
    for each in (each for node in (*bases, own) for each in node.body if not isinstance(each, ast.Pass)):
        name = getattr(each, "name", None) or ast.unparse(each).partition("=")[0]
        body[name] = _Super(body.get(name)).visit(each)
    if any("super()" in ast.unparse(each) for each in body.values()):
        return pieces
    own.body, own.bases = [*body.values()], []
    return {name: node for name, node in pieces.items() if node not in bases}


class _Super(ast.NodeTransformer):
    """Writes out a call of the method that is overridden, where it passes the parameters on as they are."""

    def __init__(self, overridden: ast.stmt | None) -> None:
        self.overridden = overridden

    def visit_Expr(self, node: ast.Expr) -> Any:
        method = self.overridden
        if isinstance(method, ast.FunctionDef) and not any(isinstance(each, ast.Return) for each in ast.walk(method)):
            parameters = ast.unparse(method.args).removeprefix("self").removeprefix(", ")
            return method.body if ast.unparse(node) == f"super().{method.name}({parameters})" else node
        return node


def hoist(pieces: Pieces) -> list[str]:
    """Take out of functions the imports that may as well stand at the top of the file, and return these."""
    found: dict[str, None] = {}
    for node in (each for piece in pieces.values() for each in ast.walk(piece)):
        if isinstance(node, ast.FunctionDef):
            early = [each for each in node.body if isinstance(each, ast.Import) and each.names[0].name in _EARLY]
            found |= {ast.unparse(each): None for each in early}
            node.body = [each for each in node.body if each not in early]
    return [*found]


def prune(pieces: Pieces, test: str) -> None:
    """Leave out the methods that neither the test nor what it calls names."""
    # A class within a method is one of the package's, whose methods the package calls.
    methods = [(node, each) for node in pieces.values() if isinstance(node, ast.ClassDef)
               for each in node.body if isinstance(each, ast.FunctionDef)]  # fmt: skip
    kept = {"__init__"}
    todo = [ast.parse(test), *(node for node in pieces.values() if not isinstance(node, ast.ClassDef))]
    todo.extend(each for _, each in methods if each.name == "__init__")
    while todo:
        used = {node.attr for node in ast.walk(todo.pop()) if isinstance(node, ast.Attribute)}
        todo.extend(each for _, each in methods if each.name in used - kept)
        kept |= used
    for owner, each in methods:
        if each.name not in kept and not each.name.startswith("__"):
            owner.body.remove(each)
            owner.body = owner.body or [ast.Pass()]


def _targets(node: ast.stmt) -> set[str]:
    """Return the names that a statement assigns to."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {each.id for each in targets if isinstance(each, ast.Name)}


def _imports(files: Sequence[Path], body: str) -> Iterator[str]:
    """Yield the import lines of these files, of what is not ampsim's, whose names are used."""
    used = {each.id for each in ast.walk(ast.parse(body)) if isinstance(each, ast.Name)}
    for node in (node for file in files for node in ast.parse(file.read_text("utf-8")).body):
        if isinstance(node, ast.Import | ast.ImportFrom) and "ampsim" not in ast.unparse(node):
            node.names = [alias for alias in node.names if (alias.asname or alias.name).partition(".")[0] in used]
            if node.names:
                yield ast.unparse(node)
