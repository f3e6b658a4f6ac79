"""Loops with a DynamicScale of flax, which returns a flag and skips nothing by itself."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ampsim.lint.names import called, is_module, leaf, name_of
from ampsim.lint.source import Function, Source

_DYNAMIC = re.compile(r"dynamic_?scale", re.I)
_STEPS = re.compile(r"apply_(gradients|updates)|\.update\(|optim|params - ")
_MAPS = ("map", "tree_map", "tree_multimap")
_REPORTS = re.compile(r"print|log|info|write|add_scalar|append|float|item")


@dataclass(frozen=True)
class ScaledStep:
    """A function that steps with scaled gradients: the names of its new scale and flag."""

    function: Function
    scale: ast.expr
    is_finite: ast.expr

    @property
    def loads(self) -> list[ast.Name]:
        """The names that the function reads."""
        names = (each for each in ast.walk(self.function) if isinstance(each, ast.Name))
        return [each for each in names if isinstance(each.ctx, ast.Load)]

    def acts(self) -> bool:
        """Return whether the flag is given to a call that is no report, or asked in a condition."""
        flag = ast.unparse(self.is_finite)
        for node in ast.walk(self.function):
            match node:
                case ast.Call() if not _REPORTS.search(called(node)):
                    parts = [*node.args, *node.keywords]
                case (
                    ast.If(test=test) | ast.IfExp(test=test) | ast.Return(value=ast.expr() as test)
                ):
                    parts = [test]
                case ast.BinOp() | ast.UnaryOp() | ast.BoolOp():
                    parts = [node]
                case _:
                    continue
            if any(ast.unparse(each) == flag for part in parts for each in ast.walk(part)):
                return True
        return False


def scaled_steps(source: Source) -> Iterator[ScaledStep]:
    """Yield the functions of a file that step with gradients of a dynamic scale."""
    for function in source.functions if _DYNAMIC.search(source.text) else ():
        makers = set[str]()
        for node in ast.walk(function) if _STEPS.search(ast.unparse(function)) else ():
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=by)) if _scales(
                    by
                ):
                    makers.add(name)
                case ast.Assign(
                    targets=[ast.Tuple(elts=[scale, ast.Name() as flag, _, _])],
                    value=ast.Call(func=by),
                ) if name_of(by) in makers or (isinstance(by, ast.Call) and _scales(by.func)):
                    yield ScaledStep(function, scale, flag)


def _scales(func: ast.expr) -> bool:
    """Return whether a function is the gradient function of a dynamic scale, and not JAX's own."""
    match func:
        case ast.Attribute(attr="value_and_grad" | "grad", value=owner):
            return not is_module(owner) and not leaf(name_of(owner))[:1].isupper()
    return False


def is_finite_ignored(source: Source) -> Iterator[ast.AST]:
    """Yield the flags, or updates in place, on which nothing acts, and the selections of equals."""
    for step in scaled_steps(source):
        if not step.acts():
            read = ast.unparse(step.is_finite) in {each.id for each in step.loads}
            updates = [*_updates_in_place(step.function)] if read else []
            yield from updates or [step.is_finite]
        for call in source.calls_of(*_MAPS, scope=step.function):
            texts = [*map(ast.unparse, call.args)]
            if len(texts) == 3 and len({*texts}) < 3:
                yield call


def _updates_in_place(function: Function) -> Iterator[ast.AST]:
    """Yield the updates of a stateful optimizer, as those of flax.nnx."""
    for node in ast.walk(function):
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="update"), args=[_, _]) as call):
                yield call


def _is_dropped(node: ast.AST) -> bool:
    """Return whether a statement makes a new state with ``replace()`` and does not keep it."""
    return isinstance(node, ast.Expr) and (
        isinstance(node.value, ast.Call) and called(node.value) == "replace"
    )


def new_scale_ignored(source: Source) -> Iterator[ast.AST]:
    """Yield the new dynamic scales that no later step uses."""
    for step in scaled_steps(source):
        scale, nodes = step.scale, [*ast.walk(step.function)]
        loops = [node for node in nodes if isinstance(node, ast.For | ast.While)]
        aside: set[ast.AST] = {node.value for node in nodes if isinstance(node, ast.Attribute)}
        aside |= {node.test for node in nodes if isinstance(node, ast.If | ast.IfExp)}
        aside |= {part for node in nodes if _is_dropped(node) for part in ast.walk(node)}
        reads = (each for each in step.loads if each not in aside and each.lineno > scale.lineno)
        dropped = isinstance(scale, ast.Name) and scale.id not in {each.id for each in reads}
        # In a loop, the next iteration reads the new scale.
        if dropped and not any(scale in ast.walk(loop) for loop in loops):
            yield scale
