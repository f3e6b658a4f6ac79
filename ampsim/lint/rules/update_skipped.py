"""AMP110: a guard that skips the update with the step."""

from collections.abc import Sequence

from ampsim.lint.event import Event, Guard, Trace, has
from ampsim.lint.rule import SKIP, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        continue
    scaler.step(optimizer)
    scaler.update()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""


def is_verdict(guard: Guard) -> bool:
    """Return whether a condition asks whether gradients, or a loss, are finite or small."""
    asks_finite = has(guard.words, r"isfinite|isnan|isinf|is_finite|nonfinite|non_finite|is_nan|has_nan|found_inf")
    clipped = has(guard.words, r"clip_grad_norm|get_total_norm") and not guard.benign
    return (asks_finite or clipped) and "%" not in guard.words


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the updates that a guard leaves out after gradients were unscaled, or by their norm."""
    for trace in traces:
        for update in trace.of("update"):
            start = trace.scaled(update)
            if start is None or start.loops != update.loops:
                continue
            unscaled = [each for each in trace.between(start, update, "unscale") if not each.apart(update)]
            for guard in update.beyond(unscaled[-1] if unscaled else start):
                if is_verdict(guard) and (unscaled or has(guard.words, r"grad")) and is_missed(trace, update, guard):
                    yield update.node, f"update() is left out where {_said(guard)}: the scale does not fall"
                    break


def _said(guard: Guard) -> str:
    return guard.text if not guard.holds else f"not {guard.text}"


def is_missed(trace: Trace, update: Event, guard: Guard) -> bool:
    """Return whether no other update happens where the guard turns this one away."""
    return not any(
        each is not update and (guard.text, guard.holds) not in {(g.text, g.holds) for g in each.guards}
        for each in trace.of("update")
    )


RULE = Rule(
    code="AMP110",
    name="update-skipped",
    sentence="Where gradients are not finite, or their norm is large, the step is left out and scaler.update() with "
    "it: "
    "the scale does not fall, and after unscale_() torch's scaler raises an error in the next iteration. Leave the "
    "skip to scaler.step(), or call scaler.update() on that way, too.",
    law=SKIP,
    thread="https://github.com/Haian-Jin/LVSM/issues/19",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
