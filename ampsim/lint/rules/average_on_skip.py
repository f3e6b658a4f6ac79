"""AMP102: an average of parameters that goes on in skipped steps."""

from collections.abc import Sequence

from ampsim.lint.event import Trace, runs_regardless, windowed
from ampsim.lint.rule import SKIP, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.step(optimizer)
    scaler.update()
    ema.update_parameters(model)
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped = scaler.get_scale() < scale
    if not skipped:
        ema.update_parameters(model)
"""


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the updates of averages that happen whether or not the scaler stepped."""
    for trace in traces:
        for average in trace.of("average"):
            if any(runs_regardless(average, step) and not windowed(step, average) for step in trace.skippable()):
                yield average.node, "the average is also updated where the scaler skipped the step"


RULE = Rule(
    code="AMP102",
    name="average-on-skip",
    sentence="The average of the parameters is updated although the scaler skipped the step and they did not move. "
    "Update it only where the scale did not fall.",
    law=SKIP,
    thread="https://github.com/huggingface/lerobot/issues/4652",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
