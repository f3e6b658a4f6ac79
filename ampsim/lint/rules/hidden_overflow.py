"""AMP123: inf and NaN that are taken out before the scaler looks."""

import ast
from collections.abc import Sequence

from ampsim.lint.event import Event, Trace
from ampsim.lint.names import words_of
from ampsim.lint.rule import SKIP, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    for param in model.parameters():
        param.grad.nan_to_num_(0.0, 0.0, 0.0)
    scaler.step(optimizer)
    scaler.update()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def hides(event: Event) -> bool:
    """Return whether a statement replaces inf and NaN in gradients."""
    for call in (each for each in ast.walk(event.node) if isinstance(each, ast.Call)):
        func = call.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if name in ("nan_to_num_", "nan_to_num") and ".grad" in words_of(event.node, {}):
            return True
    return False


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield what replaces inf and NaN after the backward pass and before the scaler looks."""
    for trace in traces:
        for event in trace.of("grad"):
            start = trace.scaled(event)
            looked = trace.between(start, event, "unscale", "step") if start else []
            if start and not looked and hides(event) and trace.between(event, None, "step", "bare"):
                yield event.node, "the scaler sees no overflow: inf and NaN are replaced before it looks"


RULE = Rule(
    code="AMP123",
    name="hidden-overflow",
    sentence="inf and NaN are replaced in the gradients before the scaler looks at them, so that no step is skipped "
    "and "
    "the scale never falls. Leave them to scaler.step(), or replace them after scaler.unscale_().",
    law=SKIP,
    thread="https://github.com/marin-community/marin/issues/7659",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
