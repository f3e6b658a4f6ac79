"""AMP111: an optimizer that steps past the scaler."""

from collections.abc import Sequence

from ampsim.lint.event import Event, Trace
from ampsim.lint.rule import SKIP, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    optimizer.step()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def is_past(trace: Trace, bare: Event) -> bool:
    """Return whether an optimizer steps with gradients of a scaled loss that no scaler has looked at."""
    start = trace.scaled(bare)
    if start is None or start.loops[: len(bare.loops)] != bare.loops:
        return False
    plain = [each for each in trace.between(None, bare, "backward") if not each.on.startswith("scaled")]
    if any(not each.apart(bare) for each in plain) or any(guard.asks for guard in bare.guards):
        return False
    if not all(guard.benign or guard.window for guard in bare.beyond(start)):
        return False
    instead = any(step.apart(bare) for step in trace.of("step", "update"))
    cleared = [each for each in trace.between(start, bare, "zero") if not each.apart(bare)]
    return not instead and not cleared


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the steps that optimizers take by themselves with gradients of a scaled loss."""
    for trace in traces:
        for bare in trace.of("bare"):
            if is_past(trace, bare):
                yield bare.node, f"{bare.of}.step() steps past the scaler: inf and NaN are stepped with"


RULE = Rule(
    code="AMP111",
    name="step-past-scaler",
    sentence="An optimizer steps by itself with gradients of a scaled loss: they are not unscaled, or not looked at "
    "for "
    "inf and NaN. Step every optimizer with scaler.step(optimizer).",
    law=SKIP,
    thread="https://github.com/nerfstudio-project/nerfacc/issues/307",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
