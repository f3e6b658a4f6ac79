"""AMP106: gradients that are measured, cut or penalised while they are scaled."""

import ast
import re
from collections.abc import Sequence

from ampsim.lint.event import Event, Trace, has
from ampsim.lint.names import SCALER, is_module, name_of, words_of
from ampsim.lint.rule import SCALE, Found, Rule
from ampsim.lint.source import Source

MEASURES = re.compile(r"^(norm|vector_norm|get_total_norm|clamp_?|clip_|square|histogram|histc)$")
WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    log(sum(param.grad.norm() for param in model.parameters()))
    scaler.step(optimizer)
    scaler.update()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.unscale_(optimizer)
    log(sum(param.grad.norm() for param in model.parameters()))
    scaler.step(optimizer)
    scaler.update()
"""


def measures(event: Event) -> bool:
    """Return whether a statement takes from gradients what is no multiple of them."""
    for call in (each for each in ast.walk(event.node) if isinstance(each, ast.Call)):
        func = call.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        of = [*call.args, func.value] if isinstance(func, ast.Attribute) else call.args
        if MEASURES.match(name) and any(".grad" in words_of(each, {}) for each in of):
            return True
    return False


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield what reads gradients between the backward pass of a scaled loss and their unscaling."""
    for trace in traces:
        for event in trace.of("grad"):
            start, later = trace.scaled(event), trace.between(event, None, "step", "unscale")
            if not start or not later or later[0].apart(event) or not measures(event) or has(event.words, "scale"):
                continue
            if not trace.between(start, event, "unscale", "step", "bare") and not any(g.asks for g in event.guards):
                yield event.node, "gradients are measured or cut while they are scaled"
    yield from penalties(source)


def penalties(source: Source) -> Found:
    """Yield the gradients of scaled losses that are made part of a loss, in functions that never ask for the scale."""
    for function in source.all_functions if "create_graph" in source.text else ():
        said = words_of(function, {})
        if "create_graph" not in {each.arg for each in ast.walk(function) if isinstance(each, ast.keyword)}:
            continue
        if has(said, "get_scale|inv_scale|_scale$") or "autograd" not in said:
            continue
        for call in (each for each in ast.walk(function) if isinstance(each, ast.Call)):
            match call.func:
                case ast.Attribute(attr="grad", value=value) if is_module(value) and call.args:
                    pass
                case _:
                    continue
            scaled = (each for arg in call.args for each in ast.walk(arg) if isinstance(each, ast.Attribute))
            if any(each.attr == "scale" and source.kind(name_of(each.value, {})) == SCALER for each in scaled):
                yield call, "the penalty is of gradients that are still scaled: divide them by scaler.get_scale()"


RULE = Rule(
    code="AMP106",
    name="scaled-gradients-read",
    sentence="Gradients are measured, cut or penalised while they are multiplied by the loss scale. Call "
    "scaler.unscale_(optimizer) before, or divide what is taken from them by scaler.get_scale().",
    law=SCALE,
    thread="https://github.com/pytorch/pytorch/issues/25081",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
