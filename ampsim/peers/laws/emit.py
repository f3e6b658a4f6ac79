"""A broken law as a pytest file in the peer's own words: nothing of ampsim is in it, and it is run where the peer is.

What drives the peer is taken from its file in `ampsim.peers.frameworks`, without what only describes it, so the test
does what the law did.
"""

import ast
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

from ampsim.core.machine import Rule
from ampsim.peers import environments
from ampsim.peers.laws.judging import Verdict
from ampsim.peers.laws.subject import FACTORS, WORDS, PeerTraits, fields
from ampsim.peers.peer import Peer
from ampsim.testing.emit.run_emitted import run_apart
from ampsim.testing.emit.scaler import printed
from ampsim.testing.emit.text import WIDTH, number, value
from ampsim.testing.kit.laws import LAWS as KIT
from ampsim.testing.kit.subject import CONSTANTS

LIMIT = 600.0  # s per test, most of which its framework takes to load
_ABOUT = {*inspect.get_annotations(Peer)}  # what describes a peer
_STEP = 'Step = namedtuple("Step", "used stepped unscaled scale")'


def emitted(peer: type[Peer], verdict: Verdict, version: str) -> str:
    """Return the pytest file of a broken law.

    Args:
        peer: its class, not a `Remote`.
        verdict: of the law, with the example that broke it.
        version: of the peer that was judged.
    """
    law, example = KIT[verdict.result.law.name], verdict.example
    if example is None or verdict.subject is None:
        raise ValueError(f"{law.name} {verdict.result.outcome} on {peer.name}: there is nothing to emit")

    def write(front: Sequence[str], imports: Sequence[str]) -> str:
        return printed(
            law, example, verdict.seen, WORDS, imports, lambda name: _maker(name, peer, verdict), front=front,
            version=f"{peer.requirement.partition('==')[0]} {version}", gives_up="(Exception,)",
        )  # fmt: skip

    bare = write((), ())
    pieces = [_STEP, *pruned(pieces_of(peer), bare)]
    return write(pieces, [*_imports(peer, "\n".join([*pieces, bare]))])


def _maker(name: str, peer: type[Peer], verdict: Verdict) -> str:
    """Write the function of torch's constants that starts the peer, as `subject_of` does: within its bounds."""
    traits = verdict.subject.traits if verdict.subject else PeerTraits()
    known, makes = fields(peer), name == "make"  # type: ignore[arg-type]  # a class has what is asked of it
    top, low = traits.possible(Rule(init_scale=2.0**127)).init_scale, traits.min_scale or 0.0
    texts = {each: f'rule["{each}"]' for each in CONSTANTS}
    if makes and (top, low) != (2.0**127, 0.0):
        texts["init_scale"] = f"min({number(top)}, max({number(low)}, {texts['init_scale']}))"
    if "factors" in traits.without and makes:
        texts |= {"growth_factor": "2.0", "backoff_factor": "0.5"}
    growth, backoff = (texts[each] for each in FACTORS)
    texts["factor"] = f"max({growth}, 1 / {backoff})" if makes else growth
    texts |= {"min_scale": number(traits.min_scale or 0.0), "hysteresis": str(traits.hysteresis)}
    given = [f"{known[each]}={text}" for each, text in texts.items() if each in known]
    rule = value({each: getattr(Rule(), each) for each in CONSTANTS})
    lines = [f"rule = {rule} | constants", f"scaler = {peer.__name__}()", f"scaler.start({', '.join(given)})"]
    if len(lines[-1]) > WIDTH - 10:
        lines[-1:] = ["scaler.start(", *(f"    {each}," for each in given), ")"]
    return "\n    ".join([f"def {name}(**constants):", *lines, "return scaler"])


def prove(peer: Peer, sources: Sequence[str]) -> list[str]:
    """Run tests in the peer's own environment, where ampsim is not to be found.

    Returns:
        by what each fails: the exception's name; "" where it passes.

    Raises:
        RuntimeError: the process ended before the last.
    """
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ended, last = run_apart(
        sources, limit=LIMIT * len(sources), python=environments.python(peer.environment), cwd="/",
        env={**kept, **environments.variables(peer.environment), "PYTHONNOUSERSITE": "1"},
    )  # fmt: skip
    if len(ended) != len(sources):
        raise RuntimeError(f"{peer.name}: {len(ended)} of {len(sources)} tests ended; the process said last: {last}")
    return [each.partition(" ")[0] for each in ended]


def pieces_of(peer: type[Peer]) -> list[str]:
    """Return the source of a peer's class and of what it uses of its package, what is used first."""
    found: dict[str, str] = {}
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
        for used in sorted(_names(bare)):
            visit(used, where)
        found[name] = ast.unparse(ast.fix_missing_locations(bare))

    visit(peer.__name__, importlib.import_module(peer.__module__))
    return [piece.replace("(Peer):", ":").replace("(Peer, ", "(") for piece in found.values()]


def _definition(name: str, module: ModuleType) -> tuple[ast.stmt | None, ModuleType]:
    """Return what defines a name at the top of a module, or of the module of ampsim that it is imported from."""
    for node in _statements(module):
        if getattr(node, "name", None) == name or name in _targets(node):
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
        self.generic_visit(node)
        return ast.Assign([node.target], node.value, lineno=node.lineno)

    @staticmethod
    def _describes(node: ast.stmt) -> bool:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return True
        if isinstance(node, ast.AnnAssign) and node.value is None:
            return True
        return bool(names := _targets(node)) and names <= _ABOUT


def _targets(node: ast.stmt) -> set[str]:
    """Return the names that a statement assigns to."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {each.id for each in targets if isinstance(each, ast.Name)}


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _statements(module: ModuleType) -> list[ast.stmt]:
    return ast.parse(inspect.getsource(module)).body


def _imports(peer: type[Peer], body: str) -> Iterator[str]:
    """Yield the import lines, of modules that a peer's class comes from, whose names are used."""
    used = _names(ast.parse(body))
    modules = {each.__module__ for each in peer.__mro__ if each.__module__.startswith("ampsim.")}
    for node in _statements(sys.modules[peer.__module__]):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ampsim.peers.frameworks."):
            modules.add(str(node.module))
    for node in (node for module in modules for node in _statements(sys.modules[module])):
        if isinstance(node, ast.Import | ast.ImportFrom) and "ampsim" not in ast.unparse(node):
            node.names = [alias for alias in node.names if (alias.asname or alias.name).partition(".")[0] in used]
            if node.names:
                yield ast.unparse(node)


def pruned(pieces: Sequence[str], test: str) -> list[str]:
    """Return pieces without the methods that neither the test nor what it calls names."""
    trees: list[ast.AST] = [ast.parse(piece).body[0] for piece in pieces]
    # A class within a method is one of the package's, whose methods the package calls.
    methods = [(node, each) for node in trees if isinstance(node, ast.ClassDef)
               for each in node.body if isinstance(each, ast.FunctionDef)]  # fmt: skip
    kept, todo = {"__init__"}, [ast.parse(test), *(tree for tree in trees if not isinstance(tree, ast.ClassDef))]
    todo.extend(each for _, each in methods if each.name == "__init__")
    while todo:
        used = {node.attr for node in ast.walk(todo.pop()) if isinstance(node, ast.Attribute)}
        todo.extend(each for _, each in methods if each.name in used - kept)
        kept |= used
    for owner, each in methods:
        if each.name not in kept and not each.name.startswith("__"):
            owner.body.remove(each)
            owner.body = owner.body or [ast.Pass()]
    return [ast.unparse(tree) for tree in trees]
