"""Writes a loop over optimizers that the file names as its iterations, one after the other."""

import ast
from collections import Counter
from copy import deepcopy

from ampsim.lint.names import leaf, name_of

_GROW = {"append", "extend", "insert"}


def unrolled(tree: ast.Module) -> ast.Module:
    """Return a tree whose loops over several named objects are unrolled, in place; those with a jump stay."""
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    grown = (node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in _GROW)
    targets = (target for node in assigned for target in node.targets)
    count = Counter(leaf(name_of(each)) for each in (*targets, *grown))
    displays = {leaf(name_of(target)): node.value for node in assigned for target in node.targets}
    made: ast.Module = _Unroll({name: value for name, value in displays.items() if count[name] == 1}).visit(tree)
    return made


def pairs_of(node: ast.For) -> list[tuple[ast.expr, ast.expr]]:
    """Return what a loop sets, and what each of it runs over: several with ``zip``."""
    match node:
        case ast.For(target=ast.Tuple(elts=targets), iter=ast.Call(func=ast.Name(id="zip"), args=columns)):
            return [*zip(targets, columns, strict=False)]
    return [(node.target, node.iter)]


class _Unroll(ast.NodeTransformer):
    """Replaces a loop over names by its body, once per name."""

    def __init__(self, displays: dict[str, ast.expr]) -> None:
        self.displays = displays

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.AST]:
        """Return the iterations of a loop, or the loop."""
        self.generic_visit(node)
        pairs = pairs_of(node)
        columns = [self.displays.get(leaf(name_of(over)), over) for _, over in pairs]
        names = [target.id for target, _ in pairs if isinstance(target, ast.Name)]
        rows = [*zip(*(each.elts for each in columns if isinstance(each, ast.Tuple | ast.List)), strict=False)]
        jumps = any(isinstance(each, ast.Break | ast.Continue) for each in ast.walk(node)) or node.orelse
        named = all(isinstance(each, ast.Name | ast.Attribute) for row in rows for each in row)
        if not rows or jumps or not named or {len(names)} != {len(pairs), *map(len, rows)}:
            return node
        return [_Named(dict(zip(names, row, strict=True))).visit(deepcopy(part)) for row in rows for part in node.body]


class _Named(ast.NodeTransformer):
    """Replaces names by what they stand for."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return what a name stands for."""
        return deepcopy(self.values.get(node.id, node))
