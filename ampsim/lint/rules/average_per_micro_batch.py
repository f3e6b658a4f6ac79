"""AMP122: an average that goes on with every micro-batch."""

from collections.abc import Sequence

from ampsim.lint.event import Event, Trace, windowed
from ampsim.lint.rule import SPLIT, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for index, batch in enumerate(loader):
    scaler.scale(model(batch) / window).backward()
    if (index + 1) % window == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    ema.update_parameters(model)
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for index, batch in enumerate(loader):
    scaler.scale(model(batch) / window).backward()
    if (index + 1) % window == 0:
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if scaler.get_scale() >= scale:
            ema.update_parameters(model)
"""


def goes_on(trace: Trace, each: Event) -> bool:
    """Return whether something happens with every micro-batch, and the scaler steps once per window."""
    steps = [step for step in trace.steps() if not step.apart(each)]
    inside = [scaled for scaled in trace.of("backward") if scaled.loops == each.loops]
    return bool(steps and inside) and all(windowed(step, each) for step in steps)


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the averages of parameters that are updated between the steps."""
    for trace in traces:
        for average in trace.of("average"):
            if goes_on(trace, average) and all(guard.benign for guard in average.guards):
                yield average.node, "the average is updated in every micro-batch, and the parameters once per window"


RULE = Rule(
    code="AMP122",
    name="average-per-micro-batch",
    sentence="The average of the parameters is updated with every micro-batch, while they move once per accumulation "
    "window: its decay is another one for another window. Update it after the step.",
    law=SPLIT,
    thread="https://github.com/lightly-ai/lightly-train/issues/968",
    wrong=WRONG,
    right=RIGHT,
    find=find,
    on=False,
)
