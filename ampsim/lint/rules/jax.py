"""Rules about a DynamicScale of flax, which returns a flag and skips nothing by itself."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from ampsim.lint.events import Traces
from ampsim.lint.names import called, is_module, name_of
from ampsim.lint.source import Source

_DYNAMIC = re.compile(r"(?i)dynamic_?scale")
_STEPS = re.compile(r"apply_(gradients|updates)|\.update\(|optim|params - ")
_REPORTS = re.compile(r"print|log|info|write|add_scalar|append|float|item")
_SELECTIONS = ("map", "tree_map", "tree_multimap")
_DECIDES = ast.If | ast.IfExp | ast.Return | ast.BinOp | ast.UnaryOp | ast.BoolOp
_USES = _DECIDES | ast.Call | ast.stmt


class ScaledStep(NamedTuple):
    """A function that steps with scaled gradients: its nodes, its new scale, and its flag."""

    nodes: list[ast.AST]
    scale: ast.expr
    is_finite: ast.Name

    def reads(self, name: str) -> list[ast.Name]:
        """Return where the function reads a name."""
        own = (
            each
            for each in self.nodes
            if isinstance(each, ast.Name) and each.id == name
        )
        return [each for each in own if isinstance(each.ctx, ast.Load)]


def scaled_steps(source: Source) -> Iterator[ScaledStep]:
    """Yield the functions of a file that step with gradients of a dynamic scale."""
    for function in source.functions if _DYNAMIC.search(source.text) else ():
        makers = set[str]()
        nodes = [*ast.walk(function)]
        for node in nodes if _STEPS.search(ast.unparse(function)) else ():
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.Call(func=by)
                ) if _scales(by):
                    makers.add(name)
                case ast.Assign(
                    targets=[ast.Tuple(elts=[scale, ast.Name() as flag, _, _])],
                    value=ast.Call(func=by),
                ) if name_of(by) in makers or _scales(getattr(by, "func", by)):
                    yield ScaledStep(nodes, scale, flag)


def _scales(func: ast.expr) -> bool:
    """Return whether a function is the gradient function of a dynamic scale, and not JAX's own."""
    match func:
        case ast.Attribute(attr="value_and_grad" | "grad", value=owner):
            return not is_module(owner)
    return False


def is_finite_ignored(source: Source, traces: Traces) -> Iterator[ast.AST]:
    """Yield the flags on which nothing acts, and the selections of equals."""
    for step in scaled_steps(source):
        if not any(_acts(source, read) for read in step.reads(step.is_finite.id)):
            yield step.is_finite
        for call in step.nodes:
            if isinstance(call, ast.Call) and called(call) in _SELECTIONS:
                texts = [*map(ast.unparse, call.args)]
                if len({*texts}) < len(texts) == 3:
                    yield call


def _acts(source: Source, flag: ast.Name) -> bool:
    """Return whether a flag is given to a call that is no report, returned, or asked."""
    node = next(source.around(flag, _USES))
    if isinstance(node, ast.Call):
        return not _REPORTS.search(called(node))
    return isinstance(node, _DECIDES)


def new_scale_ignored(source: Source, traces: Traces) -> Iterator[ast.AST]:
    """Yield the new dynamic scales that no later step uses."""
    for step in scaled_steps(source):
        loops = [*source.around(step.scale, ast.For | ast.While)]
        if (
            isinstance(step.scale, ast.Name) and not loops
        ):  # whose next iteration reads it
            reads = [
                each
                for each in step.reads(step.scale.id)
                if each.lineno > step.scale.lineno
            ]
            if not any(_keeps(source, read) for read in reads):
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
            case ast.Expr(
                value=ast.Call() as call
            ):  # a state that is no value of anything
                return called(call) != "replace"
            case ast.stmt():
                return True
        part = node
    return False
