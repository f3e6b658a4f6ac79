"""AMP126: one scaler that is updated twice per iteration."""

from collections.abc import Sequence

from ampsim.lint.event import Event, Trace
from ampsim.lint.rule import Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    scaler.scale(judge_loss(batch)).backward()
    scaler.step(judge_optimizer)
    scaler.update()
    scaler.scale(maker_loss(batch)).backward()
    scaler.step(maker_optimizer)
    scaler.update()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    scaler.scale(judge_loss(batch)).backward()
    scaler.step(judge_optimizer)
    scaler.scale(maker_loss(batch)).backward()
    scaler.step(maker_optimizer)
    scaler.update()
"""


def is_second(trace: Trace, first: Event, update: Event) -> bool:
    """Return whether two updates of one scaler follow the steps of two optimizers, in one iteration."""
    if first.on != update.on or first.loops != update.loops or first.apart(update) or update.beyond(first):
        return False
    stepped = {step.of for step in trace.between(None, first, "step") if step.loops == first.loops}
    later = [step for step in trace.between(first, update, "step") if step.loops == first.loops]
    again = trace.between(first, update, "backward", "scale")
    return bool(stepped and again) and any(step.of not in stepped for step in later)


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the second updates of scalers that two optimizers share."""
    for trace in traces:
        updates = trace.of("update")
        for place, update in enumerate(updates):
            if any(is_second(trace, first, update) for first in updates[:place]):
                yield update.node, f"{update.on} is updated for the second time in this iteration"


RULE = Rule(
    code="AMP126",
    name="two-updates",
    sentence="Two optimizers share a scaler that is updated after each of them: the growth interval is half as many "
    "iterations, and one's overflow lowers the scale of both. torch asks for one update() per iteration, after all "
    "steps. It breaks no law, so it is asked only if it is selected.",
    law="",
    thread="",
    wrong=WRONG,
    right=RIGHT,
    find=find,
    on=False,
)
