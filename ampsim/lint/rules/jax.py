"""Rules about a DynamicScale of flax, which returns a flag and skips nothing by itself."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ampsim.lint.events import Trace
from ampsim.lint.names import called, is_module, leaf, name_of
from ampsim.lint.source import Function, Source

_DYNAMIC = re.compile(r"dynamic_?scale", re.I)
_STEPS = re.compile(r"apply_(gradients|updates)|\.update\(|optim|params - ")
_MAPS = ("map", "tree_map", "tree_multimap")
_REPORTS = re.compile(r"print|log|info|write|add_scalar|append|float|item")


class ScaledStep(NamedTuple):
    """A function that steps with scaled gradients: its nodes, its new scale, and its flag."""

    function: Function
    nodes: list[ast.AST]
    scale: ast.expr
    is_finite: ast.Name

    def reads(self, name: str) -> list[ast.Name]:
        """Return where the function reads a name."""
        names = (each for each in self.nodes if isinstance(each, ast.Name) and each.id == name)
        return [each for each in names if isinstance(each.ctx, ast.Load)]


def scaled_steps(source: Source) -> Iterator[ScaledStep]:
    """Yield the functions of a file that step with gradients of a dynamic scale."""
    for function in source.functions if _DYNAMIC.search(source.text) else ():
        makers, nodes = set[str](), [*ast.walk(function)]
        for node in nodes if _STEPS.search(ast.unparse(function)) else ():
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=by)) if _scales(
                    by
                ):
                    makers.add(name)
                case ast.Assign(
                    targets=[ast.Tuple(elts=[scale, ast.Name() as flag, _, _])],
                    value=ast.Call(func=by),
                ) if name_of(by) in makers or (isinstance(by, ast.Call) and _scales(by.func)):
                    yield ScaledStep(function, nodes, scale, flag)


def _scales(func: ast.expr) -> bool:
    """Return whether a function is the gradient function of a dynamic scale, and not JAX's own."""
    match func:
        case ast.Attribute(attr="value_and_grad" | "grad", value=owner):
            return not is_module(owner) and not leaf(name_of(owner))[:1].isupper()
    return False


def is_finite_ignored(source: Source, traces: Sequence[Trace]) -> Iterator[ast.AST]:
    """Yield the flags, or updates in place, on which nothing acts, and the selections of equals."""
    for step in scaled_steps(source):
        reads = step.reads(step.is_finite.id)
        if not any(_acts(source, read) for read in reads):
            # A stateful optimizer, as that of flax.nnx, updates in place.
            updates = [
                node.value
                for node in step.nodes
                if isinstance(node, ast.Expr) and _is_call_of(node.value, "update")
            ]
            yield from updates if reads and updates else [step.is_finite]
        for call in source.calls_of(*_MAPS, scope=step.function):
            texts = [*map(ast.unparse, call.args)]
            if len(texts) == 3 and len({*texts}) < 3:
                yield call


def _is_call_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and called(node) == name


def _acts(source: Source, flag: ast.Name) -> bool:
    """Return whether a flag is given to a call that is no report, returned, or asked."""
    for node in source.around(flag):
        match node:
            case ast.Call():
                return not _REPORTS.search(called(node))
            case ast.If() | ast.IfExp() | ast.Return() | ast.BinOp() | ast.UnaryOp() | ast.BoolOp():
                return True
            case ast.stmt():
                return False
    return False


def new_scale_ignored(source: Source, traces: Sequence[Trace]) -> Iterator[ast.AST]:
    """Yield the new dynamic scales that no later step uses."""
    for step in scaled_steps(source):
        match step.scale:
            case ast.Name(id=name, lineno=line):
                reads = [read for read in step.reads(name) if read.lineno > line]
                loops = ast.For | ast.While  # in which the next iteration reads the new scale
                repeats = any(isinstance(node, loops) for node in source.around(step.scale))
                if not repeats and not any(_keeps(source, read) for read in reads):
                    yield step.scale


def _keeps(source: Source, read: ast.Name) -> bool:
    """Return whether a read keeps a scale: not of its attribute, nor by a condition."""
    part: ast.AST = read
    for node in source.around(read):
        match node:
            case ast.Attribute():
                return False
            case ast.If(test=test) | ast.IfExp(test=test):
                return part is not test
            case ast.Expr(value=value):  # a state that is made and is no value of anything
                return not _is_call_of(value, "replace")
            case ast.stmt():
                return True
        part = node
    return False
