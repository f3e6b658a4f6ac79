"""AMP104: gradients that are unscaled after the step."""

from collections.abc import Sequence

from ampsim.lint.event import Trace
from ampsim.lint.rule import SCALE, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.step(optimizer)
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield what is unscaled or clipped between the step and the update, of gradients that were stepped with."""
    for trace in traces:
        for late in trace.of("unscale", "clip"):
            earlier = [
                step
                for step in trace.between(None, late, "step")
                if step.loops == late.loops
                and not step.apart(late)
                and (late.kind == "clip" or (step.of, step.on) == (late.of, late.on))
                and not trace.between(step, late, "update", "backward", "scale")
            ]
            unused = late.kind == "unscale" or not trace.between(late, None, "step", "bare")
            if earlier and unused:
                yield late.node, "gradients are unscaled or clipped after the step that used them"


RULE = Rule(
    code="AMP104",
    name="unscale-after-step",
    sentence="Gradients are unscaled or clipped after scaler.step() has used them; torch's scaler raises an error for "
    "unscale_() there, and a clipping does nothing. Move it before scaler.step().",
    law=SCALE,
    thread="",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
