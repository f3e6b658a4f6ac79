"""AMP109: an update between the backward pass and the step."""

from collections.abc import Sequence

from ampsim.lint.event import Event, Trace, windowed
from ampsim.lint.rule import SCALE, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    loss_1, loss_2 = models(batch)
    scaler.scale(loss_1).backward(retain_graph=True)
    scaler.scale(loss_2).backward()
    scaler.step(optimizer_1)
    scaler.update()
    scaler.step(optimizer_2)
    scaler.update()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    loss_1, loss_2 = models(batch)
    scaler.scale(loss_1).backward(retain_graph=True)
    scaler.scale(loss_2).backward()
    scaler.step(optimizer_1)
    scaler.step(optimizer_2)
    scaler.update()
"""


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the updates after which gradients of the scale before are stepped with, and those without any step."""
    for trace in traces:
        for update in trace.of("update"):
            if early(trace, update):
                yield update.node, "update() moves the scale of gradients that are still to be stepped with"
            elif empty(trace, update):
                yield update.node, "update() runs in every micro-batch, and the scaler's step once per window"


def early(trace: Trace, update: Event) -> bool:
    """Return whether a step follows, with gradients of before the update."""
    later = [
        step
        for step in trace.between(update, None, "step")
        if step.on == update.on and step.loops == update.loops and not step.apart(update)
    ]
    before = trace.scaled(update)
    if not later or before is None or before.loops != update.loops or before.on != f"scaled {update.on}":
        return False
    return not trace.between(update, later[0], "backward", "scale", "unscale")


def empty(trace: Trace, update: Event) -> bool:
    """Return whether an update comes with every micro-batch, and its scaler's only steps once per window."""
    steps = [step for step in trace.steps() if step.on == update.on]
    inside = [scaled for scaled in trace.of("backward") if scaled.loops == update.loops]
    unscaled = [each for each in trace.of("unscale") if not windowed(steps[0], each)] if steps else []
    return bool(steps and inside and not unscaled and all(windowed(step, update) for step in steps))


RULE = Rule(
    code="AMP109",
    name="update-out-of-place",
    sentence="The scaler is updated between the backward pass and the step, so that gradients are divided by another "
    "scale than they were multiplied by; or without any step, which torch's scaler refuses. Update it once per "
    "iteration, after the last step.",
    law=SCALE,
    thread="https://github.com/deepspeedai/DeepSpeed/issues/8588",
    wrong=WRONG,
    right=RIGHT,
    find=find,
    on=False,
)
