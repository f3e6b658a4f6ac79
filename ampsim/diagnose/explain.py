"""Explain a run's loss scale in sentences: what happened, how it is known, what to try."""

from collections.abc import Iterator

import numpy as np

from ampsim.diagnose.findings import findings
from ampsim.diagnose.history import History
from ampsim.diagnose.infer import Inferred, fitting_dialects, infer
from ampsim.diagnose.looks import Finding
from ampsim.diagnose.what_if import other_rules
from ampsim.diagnose.words import counted, scale_text, way

HEALTHY = "Nothing is wrong with the loss scale in this run."
LIKELY = {
    "Megatron": "megatron.core.DynamicGradScaler",
    "DeepSpeed": "deepspeed.DynamicLossScaler",
    "fairseq": "fairseq.DynamicLossScaler",
    "HF Trainer": "torch.amp.GradScaler",
}
"""The dialect that a program speaks unless its settings say otherwise."""


def explain(history: History) -> tuple[str, list[Finding]]:
    """Return the explanation of a run as text, and its findings; no findings mean that it is healthy."""
    found = findings(history)
    parts = [_headline(found), "", *facts(history), *history.notes, *_cures(found), *_others(history)]
    return "\n".join(parts), found


def facts(history: History) -> list[str]:
    """Return what is known of a run in sentences: its course, its skips, its rule, whose dialect that is."""
    known = infer(history)
    return [_course(history), *_skips(history, known), *_rule(history, known)]


def _headline(found: list[Finding]) -> str:
    return "\n".join(f"{finding.kind.upper()}: {finding.what}" for finding in found) or HEALTHY


def _course(history: History) -> str:
    first, last = history.step[0], history.step[-1]
    steps = f"{f'steps {first} to {last}' if first < last else f'step {first}'}, from {history.program}"
    known = history.scale[~np.isnan(history.scale)]
    if not len(known):
        missing = "" if history.every_step else ", so skips cannot be inferred: log scaler.get_scale()"
        return f"Read: {steps}. No loss scale is in it{missing}."
    first, final, low, high = map(scale_text, (known[0], known[-1], known.min(), known.max()))
    if low == high:
        return f"Read: {steps}. The scale stood at {first}."
    ups = sum(change.new > change.old for change in history.changes)
    return (
        f"Read: {steps}. The scale began at {first}, ended at {final}, lay between {low} and {high}, grew "
        f"{counted(ups, 'time')} and fell {counted(len(history.changes) - ups, 'time')}."
    )


def _skips(history: History, known: Inferred) -> Iterator[str]:
    if history.every_step:
        yield f"Skipped: {int(history.skipped.sum())} of {counted(len(history.step), 'step')}."
    elif (said := np.nansum(history.skipped)) >= max(known.least_skips, 1):
        yield f"Skipped: {counted(said, 'step')}, by the log's own count."
    elif known.skips:
        least = counted(known.least_skips, "step")
        yield f"Skipped: at least {least}, by how far the scale fell between the lines of the log."
    longest = max(known.skips, key=lambda each: each.least, default=None)
    if longest is not None and longest.least > 3:
        between = f"between steps {longest.change.after} and {longest.change.step}"
        yield f"  The longest fall: {way([longest.change])} {between} is {longest.least} backoffs."


def _rule(history: History, known: Inferred) -> Iterator[str]:
    words = []
    if known.growth_factor:
        words.append(f"grows by {known.growth_factor:.4g}")
    if known.backoff_factor:
        words.append(f"backs off by {known.backoff_factor:.3g}")
    if known.growth_interval:
        words.append(f"grows after {counted(known.growth_interval, 'clean step')}")
    if known.hysteresis:
        words.append("tolerates some overflows before it backs off (hysteresis)")
    if words:
        yield f"Rule: {', '.join(words)}."
    fitting = fitting_dialects(history)
    if fitting:
        more = f", and so would {len(fitting) - 3} more" if len(fitting) > 3 else ""
        yield f"Dialect: {', '.join(fitting[:3])} would have made this very trajectory{more}."
    elif history.program in LIKELY:
        yield f"Dialect: {LIKELY[history.program]}, by the form of the log."


def _cures(found: list[Finding]) -> list[str]:
    cures = [finding.cure for finding in found if finding.kind != "alarm"] or [finding.cure for finding in found]
    return ["\nTry:", *(f"- {cure}" for cure in dict.fromkeys(cures))] if found else []


def _others(history: History) -> list[str]:
    others = other_rules(history)
    if not others:
        return []
    lines = [f"- {each.name}: {each.outcome}" for each in others]
    return ["\nOther rules on these gradients (a step is taken to overflow where its neighbours did):", *lines]
