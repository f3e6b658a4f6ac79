"""AMP103: gradients that are clipped while they are scaled."""

from collections.abc import Sequence

from ampsim.lint.event import Event, Trace, has
from ampsim.lint.rule import SCALE, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""


def is_scaled(source: Source, trace: Trace, clip: Event) -> bool:
    """Return whether gradients are scaled where they are clipped."""
    later = [step for step in trace.between(clip, None, "step") if step.loops == clip.loops]
    if all(step.apart(clip) for step in later) or has(clip.words, "get_scale|scaler|inv_scale"):
        return False
    start = trace.scaled(clip)
    if start is None:
        return "unscale" not in source.text and not trace.of("backward") and not trace.between(None, clip, "step")
    return not any(not each.apart(clip) for each in trace.between(start, clip, "unscale", "step", "grad", "bare"))


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the clippings between the backward pass of a scaled loss and the step, with no unscaling before."""
    for trace in traces:
        for clip in trace.of("clip"):
            if is_scaled(source, trace, clip):
                yield clip.node, "gradients are clipped while they are scaled: no scaler.unscale_() comes before"


RULE = Rule(
    code="AMP103",
    name="clip-before-unscale",
    sentence="Gradients are clipped while they are multiplied by the loss scale, so that the limit is another one at "
    "every scale. Call scaler.unscale_(optimizer) before.",
    law=SCALE,
    thread="https://github.com/milesial/Pytorch-UNet/issues/468",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
