"""AMP101: a schedule that advances on skipped steps."""

from collections.abc import Sequence

from ampsim.lint.event import Trace, runs_regardless
from ampsim.lint.names import leaf
from ampsim.lint.rule import SKIP, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:
        scheduler.step()
"""


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the steps of schedules that are taken whether or not that of the scaler was."""
    for trace in traces:
        for schedule in trace.of("schedule"):
            if leaf(schedule.on) in source.foreign:
                continue  # it may follow the optimizer's own count, which a skip leaves alone
            if any(runs_regardless(schedule, step) for step in trace.skippable()):
                yield schedule.node, f"{schedule.on}.step() also runs where the scaler skipped the step"


RULE = Rule(
    code="AMP101",
    name="schedule-on-skip",
    sentence="The schedule advances although the scaler skipped the step. Step it only where the scale did not fall: "
    "compare scaler.get_scale() before scaler.step() and after scaler.update().",
    law=SKIP,
    thread="https://github.com/Lightning-AI/pytorch-lightning/issues/18828",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
