"""AMP105: gradients that are unscaled twice."""

import ast
from collections.abc import Sequence

from ampsim.lint.event import Event, Trace, windowed
from ampsim.lint.rule import SCALE, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    for param in model.parameters():
        param.grad /= scaler.get_scale()
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


def divides_by_the_scale(event: Event) -> bool:
    """Return whether a statement divides gradients by the scale, in place."""
    if not event.words & {"get_scale", "_scale"}:
        return False
    match event.node:
        case ast.AugAssign(op=ast.Div() | ast.Mult(), target=target):
            return "grad" in {each.attr for each in ast.walk(target) if isinstance(each, ast.Attribute)}
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="div_" | "mul_", value=value))):
            return "grad" in {each.attr for each in ast.walk(value) if isinstance(each, ast.Attribute)}
    return False


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the second unscaling of gradients before their step."""
    for trace in traces:
        for step in trace.steps():
            start = trace.scaled(step)
            before = [each for each in trace.between(start, step, "unscale", "grad") if not each.apart(step)]
            if start and not trace.between(before[0] if before else None, step, "update", "scale", "backward"):
                yield from by_hand(before)
        for each in trace.of("unscale"):
            yield from per_micro_batch(trace, each)
        yield from twice(trace)


def by_hand(before: Sequence[Event]) -> Found:
    """Yield the divisions by the scale before a step that unscales."""
    for each in before:
        if each.kind == "grad" and divides_by_the_scale(each):
            yield each.node, "gradients are divided by the scale here, and again by scaler.step()"


def twice(trace: Trace) -> Found:
    """Yield a second unscale_ of one optimizer with no update between."""
    seen = [each for each in trace.of("unscale") if each.of.isidentifier() or each.of.startswith("self.")]
    for index, second in enumerate(seen):
        for first in seen[:index]:
            same = (first.of, first.on, first.loops) == (second.of, second.on, second.loops)
            both = first.node is not second.node and not first.apart(second)
            plain = all(guard.benign for guard in second.beyond(first))
            if same and both and plain and not trace.between(first, second, "update", "step"):
                yield second.node, f"unscale_({second.of}) for the second time since the last update()"


def per_micro_batch(trace: Trace, each: Event) -> Found:
    """Yield an unscale_ in every micro-batch of a window that ends in one step."""
    steps = [step for step in trace.steps() if (each.of, each.on) == (step.of, step.on) and not each.apart(step)]
    inside = [scaled for scaled in trace.of("backward") if scaled.loops == each.loops]
    if steps and inside and all(windowed(step, each) for step in steps):
        yield each.node, "unscale_() runs in every micro-batch, and scaler.step() once per window"


RULE = Rule(
    code="AMP105",
    name="unscaled-twice",
    sentence="Gradients are divided by the loss scale twice: by hand or in every micro-batch, and again by the scaler. "
    "scaler.step() unscales what unscale_() has not; call unscale_() once per step, after the last micro-batch.",
    law=SCALE,
    thread="https://github.com/redai-studio/Relax/issues/44",
    wrong=WRONG,
    right=RIGHT,
    find=find,
    on=False,
)
