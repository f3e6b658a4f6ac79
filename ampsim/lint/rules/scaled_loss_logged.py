"""AMP121: a scaled loss that is logged."""

import ast
from collections.abc import Iterator, Sequence

from ampsim.lint.event import Trace
from ampsim.lint.names import SCALER, name_of
from ampsim.lint.rule import SCALE, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    loss = scaler.scale(model(batch))
    loss.backward()
    print(loss.item())
    scaler.step(optimizer)
    scaler.update()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    loss = model(batch)
    scaler.scale(loss).backward()
    print(loss.item())
    scaler.step(optimizer)
    scaler.update()
"""


def reads(body: Sequence[ast.stmt], source: Source, scaled: set[str]) -> Iterator[ast.AST]:
    """Yield what takes the value of a scaled loss, in the order of the statements."""
    for statement in body:
        inner = [block for name in ("body", "orelse", "finalbody") if (block := getattr(statement, name, None))]
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if not inner:
            yield from taken(statement, scaled)
            assign(statement, source, scaled)
        for block in inner:
            yield from reads(block, source, scaled)


def taken(statement: ast.stmt, scaled: set[str]) -> Iterator[ast.AST]:
    """Yield what a statement logs of scaled losses: ``.item()``, ``float()``, or an entry that is called a loss."""
    for node in ast.walk(statement):
        match node:
            case ast.Call(func=ast.Attribute(attr="item", value=value)) if loss_in(value) in scaled:
                yield node
            case ast.Call(func=ast.Name(id="float"), args=[value]) if loss_in(value) in scaled:
                yield node
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=str(key)))], value=ast.Name(id=name)):
                if "loss" in key and name in scaled:
                    yield node


def loss_in(node: ast.AST) -> str:
    """Return the name in ``loss.detach().cpu()``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        node = node.func.value
    return name_of(node, {})


def assign(statement: ast.stmt, source: Source, scaled: set[str]) -> None:
    """Note which name a statement makes a scaled loss, and which no more."""
    match statement:
        case ast.Assign(targets=[target], value=ast.Call(func=ast.Attribute(attr="scale", value=value))):
            if source.kind(name_of(value, {})) == SCALER and name_of(target, {}) != "?":
                scaled.add(name_of(target, {}))
        case ast.Assign(targets=targets):
            scaled.difference_update(name_of(part, {}) for target in targets for part in ast.walk(target))
        case ast.AugAssign(op=ast.Div(), target=target):
            scaled.discard(name_of(target, {}))


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the values of scaled losses that are taken from them."""
    for scope in (source.tree, *source.all_functions):
        for node in reads(scope.body, source, set()):
            yield node, "this is the loss times the loss scale"


RULE = Rule(
    code="AMP121",
    name="scaled-loss-logged",
    sentence="What is logged is the loss times the loss scale. Log the loss from before scaler.scale().",
    law=SCALE,
    thread="https://github.com/meta-pytorch/tnt/issues/354",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
