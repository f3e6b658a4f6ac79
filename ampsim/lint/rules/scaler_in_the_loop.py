"""AMP113: a scaler that is made in the loop."""

import ast
from collections.abc import Iterator, Sequence

from ampsim.lint.event import Trace
from ampsim.lint.names import OPTIMIZER, kind_by_class, leaf, name_of
from ampsim.lint.rule import SKIP, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
for epoch in range(10):
    scaler = torch.amp.GradScaler()
    for batch in loader:
        optimizer.zero_grad()
        scaler.scale(model(batch)).backward()
        scaler.step(optimizer)
        scaler.update()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for epoch in range(10):
    for batch in loader:
        optimizer.zero_grad()
        scaler.scale(model(batch)).backward()
        scaler.step(optimizer)
        scaler.update()
"""
MESSAGE = "a fresh scaler forgets the scale that was found, and with it every backoff"


def made(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in a tree that make a scaler."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and "GradScaler" in leaf(name_of(each.func, {})):
            yield each


def makes_optimizers(node: ast.AST, source: Source) -> bool:
    """Return whether a tree makes an optimizer, or calls what may: then a scaler is made with it, once per run."""
    calls = [name_of(each.func, {}) for each in ast.walk(node) if isinstance(each, ast.Call)]
    return any(kind_by_class(call) == OPTIMIZER or OPTIMIZER[:5] in leaf(call).lower() for call in calls)


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the scalers that are made in the body of a loop that trains with an optimizer of outside."""
    stepped = {loop for trace in traces for step in trace.steps() for loop in step.loops}
    for loop in stepped:
        if isinstance(loop, ast.For | ast.While) and not makes_optimizers(loop, source):
            for call in (call for statement in loop.body for call in made(statement)):
                yield call, MESSAGE
    for function in source.all_functions:
        given = {arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)}
        if any("optim" in name for name in given) and not makes_optimizers(function, source):
            loops = [each for each in function.body if each in stepped]
            calls = [call for each in function.body if each not in loops for call in made(each)]
            if loops and "epoch" in function.name and "epochs" not in function.name:
                yield from ((call, MESSAGE) for call in calls)


RULE = Rule(
    code="AMP113",
    name="scaler-in-the-loop",
    sentence="A scaler is made again and again while one optimizer trains, so that the scale starts from its initial "
    "value each time and what overflows has to be found anew. Make it once, before the loop.",
    law=SKIP,
    thread="",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
