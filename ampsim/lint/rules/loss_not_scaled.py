"""AMP107: a loss, or one of several, that is not scaled."""

from collections.abc import Sequence

from ampsim.lint.event import Event, Trace
from ampsim.lint.rule import SCALE, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward(retain_graph=True)
    penalty(model).backward()
    scaler.step(optimizer)
    scaler.update()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward(retain_graph=True)
    scaler.scale(penalty(model)).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def is_alone(trace: Trace, plain: Event, step: Event) -> bool:
    """Return whether the gradients of a plain pass go to a step of the scaler, added to scaled ones."""
    scaled = [each for each in trace.of("backward") if each.on.startswith("scaled") and each.loops == plain.loops]
    with_it = [each for each in scaled if not each.apart(plain) and not each.apart(step)]
    for other in with_it:
        first, second = sorted((other, plain), key=trace.index)
        if trace.index(second) < trace.index(step) and not trace.between(first, step, "zero", "update", "bare"):
            return not trace.between(first, step, "step")
    return False


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the backward passes of plain losses whose gradients a scaler's step unscales."""
    for trace in traces:
        for plain in (each for each in trace.of("backward") if each.on == "plain"):
            steps = [each for each in trace.between(plain, None, "step") if not each.apart(plain)]
            same = [each for each in steps if each.loops == plain.loops]
            if same and is_alone(trace, plain, same[0]):
                yield plain.node, "this loss is not scaled, and its gradients are added to scaled ones"
            elif same and never_scaled(source, trace, plain, same[0]):
                yield plain.node, "scaler.step() unscales gradients of a loss that was never scaled"


def never_scaled(source: Source, trace: Trace, plain: Event, step: Event) -> bool:
    """Return whether no loss of the file is scaled."""
    return ".scale(" not in source.text and not trace.between(plain, step, "bare", "zero", "step")


RULE = Rule(
    code="AMP107",
    name="loss-not-scaled",
    sentence="Gradients of a loss that was not scaled are divided by the loss scale. Pass every loss through "
    "scaler.scale() before its backward pass.",
    law=SCALE,
    thread="https://github.com/areal-project/AReaL/issues/1659",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
