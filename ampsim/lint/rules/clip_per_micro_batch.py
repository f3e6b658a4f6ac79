"""AMP125: gradients that are clipped with every micro-batch."""

from collections.abc import Sequence

from ampsim.lint.event import Event, Trace, windowed
from ampsim.lint.rule import SPLIT, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for index, batch in enumerate(loader):
    scaler.scale(model(batch) / window).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0 * scaler.get_scale())
    if (index + 1) % window == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for index, batch in enumerate(loader):
    scaler.scale(model(batch) / window).backward()
    if (index + 1) % window == 0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


def is_early(trace: Trace, clip: Event) -> bool:
    """Return whether gradients are clipped with every micro-batch, and stepped with once per window."""
    steps = [step for step in trace.of("step", "bare") if not step.apart(clip)]
    passes = [each for each in trace.of("backward") if each.loops == clip.loops and not each.apart(clip)]
    return bool(steps and passes) and all(windowed(step, clip) for step in steps)


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the clippings of sums of gradients that are not complete."""
    for trace in traces:
        for clip in trace.of("clip"):
            if is_early(trace, clip):
                yield clip.node, "gradients are clipped with every micro-batch, and stepped with once per window"


RULE = Rule(
    code="AMP125",
    name="clip-per-micro-batch",
    sentence="Gradients are clipped after every micro-batch, and stepped with once per accumulation window: what is "
    "cut is a part of the sum, and another window gives another step. Clip once, before the step.",
    law=SPLIT,
    thread="",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
