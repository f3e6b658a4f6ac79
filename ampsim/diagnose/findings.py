"""What went wrong in a run: what the looks find, the cause before its effects, and effects left out."""

import numpy as np

from ampsim.diagnose.history import History
from ampsim.diagnose.infer import infer
from ampsim.diagnose.looks import LOOKS, Finding, spacing

LEAD = 20
"""Entries by which a fall must come before the first loss that is not finite, to be no effect of the same overflow."""
EFFECTS = {
    "collapse": {"data spike", "dead layer", "interval too long"},
    "floor reached": {"data spike", "dead layer", "interval too long"},
    "interval too long": {"data spike", "dead layer"},
}
"""Kind of a finding -> what is left out beside it, as it follows from it."""


def findings(history: History) -> list[Finding]:
    """Return what went wrong, the cause before its effects; nothing if the run is healthy."""
    known = infer(history)
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that no run has
        found = [finding for look in LOOKS for finding in look(history, known)]
    kinds = {finding.kind for finding in found}
    if found and found[0].kind == "forward overflow":  # what comes with it or after it follows from it, at any scale
        effects, first = {"collapse", "floor reached", "data spike"}, found[0].step
        found = [each for each in found if each.kind not in effects or each.step + LEAD * spacing(history) < first]
        found.sort(key=lambda each: each.step)
    effects = set().union(*(EFFECTS.get(kind, set()) for kind in kinds))
    found = [each for each in found if each.kind not in effects]
    return found + [
        Finding("alarm", step, f"Step {step}: {text}.", "Look at the steps before.") for step, text in history.alarms
    ]
