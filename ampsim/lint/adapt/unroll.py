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


class _Unroll(ast.NodeTransformer):
    """Replaces a loop over names by its body, once per name."""

    def __init__(self, displays: dict[str, ast.expr]) -> None:
        self.displays = displays

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.AST]:
        """Return the iterations of a loop, or the loop."""
        self.generic_visit(node)
        over = self.displays.get(leaf(name_of(node.iter)), node.iter)
        jumps = any(isinstance(each, ast.Break | ast.Continue) for each in ast.walk(node)) or node.orelse
        if jumps or not isinstance(node.target, ast.Name) or not isinstance(over, ast.Tuple | ast.List):
            return node
        if not over.elts or not all(isinstance(each, ast.Name | ast.Attribute) for each in over.elts):
            return node
        return [_Named(node.target.id, each).visit(deepcopy(part)) for each in over.elts for part in node.body]


class _Named(ast.NodeTransformer):
    """Replaces a name by what it stands for."""

    def __init__(self, name: str, value: ast.expr) -> None:
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return what a name stands for."""
        return deepcopy(self.value) if node.id == self.name else node
