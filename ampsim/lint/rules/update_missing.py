"""AMP108: a scaler that is never updated."""

import ast
from collections.abc import Sequence

from ampsim.lint.event import Trace
from ampsim.lint.names import SCALER, leaf, name_of
from ampsim.lint.rule import SKIP, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.step(optimizer)
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def is_updated(source: Source, scaler: str) -> bool:
    """Return whether the file updates a scaler, maybe under another name."""
    calls = (each.func for each in source.nodes if isinstance(each, ast.Call))
    owners = {name_of(func.value, {}) for func in calls if isinstance(func, ast.Attribute) and func.attr == "update"}
    return any(leaf(owner) == leaf(scaler) or source.kind(owner) == SCALER for owner in owners)


def made_by_torch(source: Source, scaler: str) -> bool:
    """Return whether the file makes the scaler, and by torch's own name of a class."""
    for node in source.nodes:
        match node:
            case ast.Assign(targets=[target], value=ast.Call(func=func)) if leaf(name_of(target, {})) == leaf(scaler):
                return leaf(name_of(func, {})) in ("GradScaler", "ShardedGradScaler")
    return False


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the steps of scalers that the file scales with and never updates."""
    for trace in traces:
        for step in trace.steps():
            scales = [each for each in trace.of("scale") if each.on == step.on]
            known = made_by_torch(source, step.on) and scales
            if known and not trace.of("update") and not is_updated(source, step.on):
                yield step.node, f"no {step.on}.update() follows in this file"


RULE = Rule(
    code="AMP108",
    name="update-missing",
    sentence="The scaler steps and is never updated: its scale neither falls nor grows, and torch's scaler raises an "
    "error at the second step. Call scaler.update() once per iteration, after the last step.",
    law=SKIP,
    thread="",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
