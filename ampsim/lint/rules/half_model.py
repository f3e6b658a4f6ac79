"""AMP114: a model in half precision with a scaler."""

import ast
from collections.abc import Iterator, Sequence

from ampsim.lint.event import Trace
from ampsim.lint.names import OPTIMIZER, kind_by_class, name_of
from ampsim.lint.rule import LEARNS, Found, Rule
from ampsim.lint.source import Function, Source

WRONG = """\
model.half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.step(optimizer)
    scaler.update()
"""
RIGHT = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(batch)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def halved(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.AST, str]]:
    """Yield the modules that are turned to half precision by a statement that stands under no condition."""
    for statement in body:
        value = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
        match value:
            case ast.Call(func=ast.Attribute(attr="half", value=model), args=[]):
                yield value, name_of(model, {})
            case ast.Call(func=ast.Attribute(attr="to", value=model), args=[ast.Attribute(attr="float16" | "half")]):
                yield value, name_of(model, {})


def trained(node: ast.AST) -> Iterator[str]:
    """Yield the names of what optimizers are made of."""
    for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
        if kind_by_class(name_of(call.func, {})) == OPTIMIZER:
            for each in (part for arg in call.args[:1] for part in ast.walk(arg)):
                if isinstance(each, ast.Attribute) and each.attr == "parameters":
                    yield name_of(each.value, {})


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the models of half precision whose parameters an optimizer in the same function has, with a scaler."""
    if not any(trace.steps() for trace in traces):
        return
    scopes: list[ast.Module | Function] = [source.tree, *source.all_functions]
    for scope in scopes:
        names = {*trained(scope)} if [*halved(scope.body)] else set()
        whole = ast.unparse(scope) if names else ""
        for node, name in halved(scope.body):
            if name in names and f"{name}.float()" not in whole and "GradScaler" in whole:
                yield node, f"{name} is in half precision: torch's scaler refuses to unscale float16 gradients"


RULE = Rule(
    code="AMP114",
    name="half-model",
    sentence="The parameters are in float16 and so are their gradients, which torch's scaler refuses: \"Attempting to "
    'unscale FP16 gradients". Keep float32 parameters and use torch.autocast.',
    law=LEARNS,
    thread="https://github.com/2U1/Qwen-VL-Series-Finetune/issues/184",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
