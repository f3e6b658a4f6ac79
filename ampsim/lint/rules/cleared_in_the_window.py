"""AMP120: gradients that are cleared in every micro-batch."""

from collections.abc import Sequence

from ampsim.lint.event import Event, Trace, windowed
from ampsim.lint.names import leaf
from ampsim.lint.rule import SPLIT, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for index, batch in enumerate(loader):
    optimizer.zero_grad()
    scaler.scale(model(batch) / window).backward()
    if (index + 1) % window == 0:
        scaler.step(optimizer)
        scaler.update()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for index, batch in enumerate(loader):
    scaler.scale(model(batch) / window).backward()
    if (index + 1) % window == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


def is_lost(trace: Trace, zero: Event) -> bool:
    """Return whether gradients of micro-batches are cleared before the one step that is to use them."""
    passes = [
        each
        for each in trace.of("backward")
        if each.loops == zero.loops and not each.apart(zero) and not zero.beyond(each)
    ]
    steps = [step for step in trace.steps() if leaf(step.of) == leaf(zero.of) and not step.apart(zero)]
    inside = [step for step in steps if step.loops == zero.loops and not windowed(step, zero)]
    between = [each for each in trace.of("bare") if each.loops == zero.loops]
    return bool(passes and steps and not inside and not between) and all(windowed(step, zero) for step in steps)


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield what clears gradients with every micro-batch, where the scaler steps once per window."""
    for trace in traces:
        for zero in trace.of("zero"):
            if is_lost(trace, zero):
                yield (
                    zero.node,
                    "gradients are cleared in every micro-batch, and only those of the last are stepped with",
                )


RULE = Rule(
    code="AMP120",
    name="cleared-in-the-window",
    sentence="Gradients are cleared before every micro-batch, and the scaler steps once per window: all but the last "
    "ones are lost. Clear them after the step.",
    law=SPLIT,
    thread="https://github.com/bytetriper/RAE/issues/67",
    wrong=WRONG,
    right=RIGHT,
    find=find,
    on=False,
)
