"""The source of what drives a peer, as a test needs it: one class, without what only describes the peer."""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from types import ModuleType

from ampsim.peers.laws.shorter import Pieces, flat, hoist, inline, names, only_used, prune, targets
from ampsim.peers.peer import Peer

STEP = 'Step = namedtuple("Step", "used stepped unscaled scale")'
_ABOUT = {*inspect.get_annotations(Peer)}  # what describes a peer


def driver_of(peer: type[Peer], test: str) -> tuple[list[str], list[str]]:
    """Return the definitions that a test of a peer begins with, and the lines that import what they use.

    Args:
        peer: its class, not a `Remote`.
        test: the rest of the file, which names what it calls.
    """
    pieces = flat(peer, pieces_of(peer))
    asked = re.search(r"\.(stepped|unscaled)\b", "\n".join([test, ast.unparse(pieces[peer.__name__])]))
    if not asked:
        only_used(pieces)
    early = hoist(pieces)
    inline(pieces[peer.__name__], test)
    prune(pieces, test)
    texts = [STEP] * bool(asked) + [ast.unparse(ast.fix_missing_locations(node)) for node in pieces.values()]
    return texts, [*early, *_imports(peer, "\n".join([*texts, test]))]


def pieces_of(peer: type[Peer]) -> Pieces:
    """Return a peer's class and what it uses of its package, what is used first."""
    found: Pieces = {}
    seen = {"Peer", "Step"}  # one may name itself

    def visit(name: str, module: ModuleType) -> None:
        node, where = _definition(name, module)
        if node is None or name in seen:
            return
        seen.add(name)
        for inner in ast.walk(node):
            if isinstance(inner, ast.ImportFrom) and _is_of_peers(inner):
                for alias in inner.names:
                    visit(alias.name, importlib.import_module(str(inner.module)))
        bare = _Bare().visit(node)
        for used in sorted(names(bare)):
            visit(used, where)
        found[name] = bare

    visit(peer.__name__, importlib.import_module(peer.__module__))
    return found


def _definition(name: str, module: ModuleType) -> tuple[ast.stmt | None, ModuleType]:
    """Return what defines a name at the top of a module, or of the module of ampsim that it is imported from."""
    for node in _statements(module):
        if getattr(node, "name", None) == name or name in targets(node):
            return node, module
        if isinstance(node, ast.ImportFrom) and _is_of_peers(node):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _definition(alias.name, importlib.import_module(str(node.module)))
    return None, module


def _is_of_peers(node: ast.ImportFrom) -> bool:
    return str(node.module).startswith("ampsim.peers.")


class _Bare(ast.NodeTransformer):
    """Leaves out docstrings, annotations, imports of what is written out, and what describes a peer."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if _is_of_peers(node) else node

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
        return bool(names := targets(node)) and names <= _ABOUT


def _statements(module: ModuleType) -> list[ast.stmt]:
    return ast.parse(inspect.getsource(module)).body


def _imports(peer: type[Peer], body: str) -> Iterator[str]:
    """Yield the import lines, of modules that a peer's class comes from, whose names are used."""
    used = names(ast.parse(body))
    modules = {each.__module__ for each in peer.__mro__ if each.__module__.startswith("ampsim.")}
    for node in _statements(sys.modules[peer.__module__]):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ampsim.peers.frameworks."):
            modules.add(str(node.module))
    for node in (node for module in modules for node in _statements(sys.modules[module])):
        if isinstance(node, ast.Import | ast.ImportFrom) and "ampsim" not in ast.unparse(node):
            node.names = [alias for alias in node.names if (alias.asname or alias.name).partition(".")[0] in used]
            if node.names:
                yield ast.unparse(node)
