"""AMP118: a verdict of flax's DynamicScale that nobody reads."""

import ast
from collections.abc import Iterator, Sequence

from ampsim.lint.event import Trace
from ampsim.lint.names import leaf, name_of
from ampsim.lint.rule import SKIP, Found, Rule
from ampsim.lint.source import Function, Source

WRONG = """\
def train_step(state, dynamic_scale, batch):
    grad_fn = dynamic_scale.value_and_grad(loss_fn)
    dynamic_scale, is_finite, loss, grads = grad_fn(state.params)
    return state.apply_gradients(grads=grads), dynamic_scale, loss
"""
RIGHT = """\
def train_step(state, dynamic_scale, batch):
    grad_fn = dynamic_scale.value_and_grad(loss_fn)
    dynamic_scale, is_finite, loss, grads = grad_fn(state.params)
    new = state.apply_gradients(grads=grads)
    keep = functools.partial(jnp.where, is_finite)
    return jax.tree.map(keep, new, state), dynamic_scale, loss
"""


def verdicts(function: Function) -> Iterator[tuple[ast.AST, str]]:
    """Yield the second of four values that a gradient function of a dynamic scale returns, and its name."""
    makers = {"value_and_grad"}
    for node in (each for each in ast.walk(function) if isinstance(each, ast.Assign)):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Attribute(attr=attr, value=value))):
                if attr in ("value_and_grad", "grad") and "scale" in leaf(name_of(value, {})).lower():
                    makers.add(name)
            case ast.Assign(targets=[ast.Tuple(elts=[_, ast.Name(id=name) as target, _, _])], value=ast.Call() as call):
                called = call.func.func if isinstance(call.func, ast.Call) else call.func
                base = name_of(called.value, {}) if isinstance(called, ast.Attribute) else ""
                scaled = "scale" in base.lower() and isinstance(call.func, ast.Call)
                if scaled or (isinstance(called, ast.Name) and called.id in makers - {"value_and_grad"}):
                    yield target, name


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the verdicts that are never read in their function."""
    if "DynamicScale" not in source.text and "dynamic_scale" not in source.text:
        return
    for function in source.all_functions:
        read = {each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
        for node, name in verdicts(function):
            if name not in read:
                yield node, f"{name} says whether gradients are finite, and nothing asks it"


RULE = Rule(
    code="AMP118",
    name="verdict-dropped",
    sentence="DynamicScale says whether gradients are finite and leaves the skip to the caller, who does not read it: "
    "inf and NaN reach the parameters. Keep the old state with jnp.where(is_finite, new, old).",
    law=SKIP,
    thread="",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
