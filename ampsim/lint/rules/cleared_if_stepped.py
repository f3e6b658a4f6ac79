"""AMP124: gradients that a skipped step leaves behind."""

from collections.abc import Sequence

from ampsim.lint.event import Trace
from ampsim.lint.rule import SKIP, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    scaler.scale(model(batch)).backward()
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:
        optimizer.zero_grad()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    scaler.scale(model(batch)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield what clears gradients only where the step was not skipped."""
    for trace in traces:
        zeros = trace.of("zero")
        for zero in zeros:
            steps = [step for step in trace.between(None, zero, "step") if step.loops == zero.loops]
            verdicts = [guard for guard in (zero.beyond(steps[-1]) if steps else []) if guard.asks or _steps(guard)]
            if verdicts and all(each is zero for each in zeros) and trace.scaled(zero):
                yield zero.node, "gradients of a skipped step stay, and the inf in them is added to the next ones"


def _steps(guard: object) -> bool:
    return getattr(guard, "text", "").endswith("update()")


RULE = Rule(
    code="AMP124",
    name="cleared-if-stepped",
    sentence="Gradients are cleared only where the step was not skipped: the inf of a skipped step stays in them, and "
    "every later step is skipped, too. Clear them after every step.",
    law=SKIP,
    thread="https://github.com/PaddlePaddle/Paddle/issues/67895",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
