"""AMP112: a checkpoint with the optimizer and without the scaler."""

import ast
import re
from collections.abc import Iterator, Sequence

from ampsim.lint.event import Trace
from ampsim.lint.names import OPTIMIZER, leaf, name_of
from ampsim.lint.rule import RESUME, Found, Rule
from ampsim.lint.source import Source

SAVES = re.compile(r"(^|_)save|checkpoint", re.I)
CHECKPOINTS = re.compile(r"^_?save_?(checkpoint|ckpt|state|model)s?$", re.I)
WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.step(optimizer)
    scaler.update()
torch.save({"optimizer": optimizer.state_dict()}, path)
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.step(optimizer)
    scaler.update()
torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, path)
"""


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the states of optimizers that a file saves which makes a scaler, and says nowhere that it saves that."""
    if not any(trace.steps() for trace in traces) or "save" not in source.text:
        return
    if "GradScaler(" in source.text and not mentions_a_scaler(source.tree):
        yield from saved_optimizers(source)


def mentions_a_scaler(tree: ast.AST) -> bool:
    """Return whether a scaler is saved, or handed to what may save it."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if "scaler" in text.lower() and len(text) < 40:
                return True
            case ast.Attribute(attr="state_dict" | "load_state_dict", value=value) if is_scaler(value):
                return True
            case ast.Call(func=func, args=args, keywords=keywords) if SAVES.search(name_of(func, {})):
                if any(is_scaler(part) for each in (*args, *keywords) for part in ast.walk(each)):
                    return True
    return False


def is_scaler(node: ast.AST) -> bool:
    """Return whether an expression is called a scaler, or may be one of several things in a loop."""
    return "scaler" in name_of(node, {}).lower() or (isinstance(node, ast.keyword) and "scaler" in (node.arg or ""))


def saved_optimizers(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Yield the states of optimizers that stand in a dictionary."""
    for node in source.nodes:
        match node:
            case ast.Dict(values=values):
                pass
            case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                values = [each.value for each in keywords]
            case ast.Assign(targets=[ast.Subscript()], value=value):
                values = [value]
            case ast.Call(func=func, args=args, keywords=keywords) if CHECKPOINTS.search(leaf(name_of(func, {}))):
                if given := [
                    each for each in (*args, *(word.value for word in keywords)) if is_optimizer(source, each)
                ]:
                    yield node, f"{name_of(given[0], {})} is saved and the scaler is not: a run that is resumed differs"
                    return
                continue
            case _:
                continue
        for value in values:
            match value:
                case ast.Call(func=ast.Attribute(attr="state_dict", value=owner)):
                    if is_optimizer(source, owner):
                        yield value, "the optimizer is saved and the scaler is not: a run that is resumed differs"
                        return


def is_optimizer(source: Source, node: ast.AST) -> bool:
    """Return whether an expression is an optimizer by its name."""
    return isinstance(node, ast.Name | ast.Attribute) and source.kind(name_of(node, {})) == OPTIMIZER


RULE = Rule(
    code="AMP112",
    name="scaler-not-saved",
    sentence="The checkpoint holds the optimizer's state and not the scaler's, so that a resumed run begins with "
    "another "
    "scale and growth tracker. Save scaler.state_dict() and load it.",
    law=RESUME,
    thread="https://github.com/huggingface/transformers/issues/11663",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
