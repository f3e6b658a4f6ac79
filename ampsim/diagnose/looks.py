"""Looks at a run, each for one thing that goes wrong: a look yields a finding in plain words, or nothing.

A finding names its step, its evidence and what to try.
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ampsim.diagnose.dead_layers import dead_layers
from ampsim.diagnose.history import Change, Floats, History
from ampsim.diagnose.infer import Inferred
from ampsim.diagnose.scaled_norm import scaled_norm
from ampsim.diagnose.words import counted, scale_text, way

Bools = npt.NDArray[np.bool_]

DESCENT = 6
"""Backoffs without a growth in between that a run does not make while it only looks for its scale."""
SPIKE = {"the gradient norm": 4.0, "the loss": 2.0}
"""Times the median before it at which it stands out."""
RISEN = 1.5
"""Times its usual value at which a loss has risen."""
ENDLESS = 2.0**40
"""A scale at which a gradient of 6e-8 overflows."""
LOST = 3
"""Losses in a row to the end of the log that are not finite, from which weights are taken to be lost."""


class Finding(NamedTuple):
    """One thing that went wrong."""

    kind: str
    """"collapse", "data spike", "interval too long", "floor reached", "scaled norm", "scaled clip", "dead layer",
    "forward overflow", "hidden skips", "endless growth"; "alarm" for what the recorder saw itself."""
    step: int
    """Where it could first be seen."""
    what: str
    """A sentence with its numbers."""
    cure: str
    """What to try."""


def _descent(history: History, least: float) -> list[Change]:
    """Return the last falls without a growth in between of at least so many halvings, if the scale has not come back.

    What follows a collapse, such as a few growths that fail, is no way back. Falls before a standstill that is longer
    than all that follows it, such as the search for a first scale, are left out.
    """
    found, lowest = [], math.inf
    for fell, group in itertools.groupby(history.changes, lambda change: change.fell):
        changes = list(group)
        if fell and _backoffs(changes) >= least:
            found, lowest = _last_fall(changes, least), changes[-1].new
        elif changes[-1].new > 4 * lowest:
            found = []
    return found


def _last_fall(falls: list[Change], least: float) -> list[Change]:
    fallen = 0.0
    for at in range(len(falls) - 1, 0, -1):
        fallen += falls[at].halvings
        if fallen >= least and falls[at].after - falls[at - 1].step > falls[-1].step - falls[at].after:
            return falls[at:]
    return falls


def _backoffs(changes: list[Change]) -> float:
    return sum(change.halvings for change in changes)


def spacing(history: History) -> float:
    """Return the usual number of steps from one entry to the next."""
    return float(np.median(np.diff(history.step))) if len(history.step) > 1 else 1.0


def _collapse(history: History, _: Inferred) -> Iterator[Finding]:
    """Yield a finding where the scale falls to the end of the log, or below 1."""
    falls = _descent(history, DESCENT)
    if not falls:
        return
    final, tail = falls[-1].new, int(history.step[-1]) - falls[-1].step
    length = falls[-1].step - falls[0].after
    searching = falls[0].after == history.step[0]  # from a first scale that was only a guess
    stays = spacing(history) if searching else 2 * max(length, spacing(history))
    if final >= 1 and tail > stays:
        return  # it found a scale and stayed there
    fallen = itertools.accumulate(fall.halvings for fall in falls)
    seen = next((fall for fall, so_far in zip(falls, fallen, strict=True) if so_far >= 3), falls[-1])
    norm = _before(history, history.norm, seen.step)
    blown = f"; the gradient norm had been {norm:.3g} before" if norm else ""
    yield Finding(
        "collapse",
        seen.step,
        f"The loss scale fell from {way(falls)} without recovering, by step {falls[-1].step}: at least "
        f"{round(_backoffs(falls))} halvings. It could be seen at step {seen.step}{_lead(history, seen)}{blown}.",
        "No scale makes these gradients finite: the run itself diverged. Go back to a checkpoint before step "
        f"{falls[0].after}, and lower the learning rate, clip, or skip the batches from there on.",
    )


def _lead(history: History, seen: Change) -> str:
    """Return in words how long before the loss rose a fall of the scale was seen; nothing if it did not rise later."""
    usual = _before(history, history.loss, seen.step + 1)
    if not usual or usual <= 0:
        return ""
    risen = history.step[(history.step > seen.step) & (history.loss > RISEN * usual)]
    if not len(risen):
        return ""
    lead = int(risen[0]) - seen.step
    return f", {counted(lead, 'step')} before the loss rose (step {risen[0]})"


def _floor(history: History, _: Inferred) -> Iterator[Finding]:
    """Yield a finding where steps are skipped while the scale stays at its lowest value."""
    if np.isnan(history.scale).all():
        return
    lowest = float(np.nanmin(history.scale))
    bad = (history.skipped > 0) | np.isinf(history.norm)
    stuck = (history.scale == lowest) & bad
    first = _run_of(stuck, 3)
    if first is None or not any(change.new == lowest for change in history.changes):
        return
    if history.settings.get("printed_as_zero") == lowest:
        return  # it may still fall
    yield Finding(
        "floor reached",
        int(history.step[first]),
        f"From step {history.step[first]} on the loss scale stands at {scale_text(lowest)}, its minimum, and steps are "
        f"still skipped: {int(np.nansum(history.skipped[first:]) or stuck.sum())} in all.",
        "A smaller minimum helps if gradients are merely large. Otherwise they are inf or NaN at any scale: look for "
        "the first module whose output is not finite (`ampsim.probe.bisect`), from a checkpoint before step "
        f"{history.step[max(first - 1, 0)]}.",
    )


def _run_of(where: Bools, length: int) -> int | None:
    """Return where a stretch of at least `length` true entries begins."""
    stretch = 0
    for i, true in enumerate(where):
        stretch = stretch + 1 if true else 0
        if stretch == length:
            return i - length + 1
    return None


def _forward_overflow(history: History, _: Inferred) -> Iterator[Finding]:
    """Yield a finding where the loss itself is not finite on skipped steps."""
    both = np.isinf(history.loss) & ~(history.skipped == 0)
    if not both.any():
        return
    at = int(np.argmax(both))
    names = list(history.bad.get(int(history.step[at]), {}))
    others = " and others" if len(names) > 3 else ""
    where = f"; not finite were the gradients of {', '.join(names[:3])}{others}" if names else ""
    count = int(both.sum())
    steps = f"at {counted(count, 'step')}" if spacing(history) == 1 else f"in {counted(count, 'line')} of the log"
    lost = count >= LOST and not np.isfinite(history.loss[at:]).any()
    falls = [change for change in history.changes if change.fell and change.step >= history.step[at]]
    effect = f"; its fall from {way(falls)} is an effect" if falls else ""
    yield Finding(
        "forward overflow",
        int(history.step[at]),
        f"The loss itself was not finite {steps}, first at step {history.step[at]}{' and ever since' * lost}{where}. "
        f"The loss scale has no part in the forward pass{effect}.",
        (f"Go back to a checkpoint before step {history.step[at]}: these weights give no finite loss. " * lost)
        + "An activation left float16's range (65504), or a batch has NaN. Keep the modules in question in float32 "
        "(`ampsim.probe.bisect` finds them), or look at the batch.",
    )


def _scaled_norm(history: History, _: Inferred) -> Iterator[Finding]:
    """Yield a finding where the logged norm has the loss scale in it."""
    for kind, what in scaled_norm(history):
        yield Finding(
            kind,
            int(history.step[0]),
            what,
            "If that norm is what the clip sees, gradients are clipped to max_norm over the scale, which is next to "
            "nothing: call scaler.unscale_(optimizer) before clip_grad_norm_.",
        )


def _dead_layer(history: History, _: Inferred) -> Iterator[Finding]:
    """Yield a finding for the parameters whose gradients fp16 flushes to zero, or that have none."""
    if what := dead_layers(history):
        yield Finding(
            "dead layer",
            history.samples[0].step,
            what,
            "If they are zero in float32 too, the graph is cut or the activation is saturated; if not, a larger loss "
            "scale, or float32 for these layers, brings them back.",
        )


def _interval(history: History, known: Inferred) -> Iterator[Finding]:
    """Yield a finding where the scale was thrown down and does not come back within the run."""
    falls = _descent(history, 4)
    if not falls:
        return
    settled = [change for change in history.changes if change.step <= falls[0].after]
    fall, last = _backoffs(falls), falls[-1]
    before = falls[0].after - (settled[-1].step if settled else int(history.step[0]))
    clean = int(history.step[-1]) - last.step
    length = max(last.step - falls[0].after, 1)
    if before < length or clean < 4 * max(length, spacing(history)):
        return  # a search from the start, or a run that ends too soon to tell
    interval = history.settings.get("growth_interval") or known.growth_interval
    took = f"a growth interval of {interval}" if interval else "growth"
    yield Finding(
        "interval too long",
        last.step,
        f"After step {falls[0].after} the loss scale fell from {way(falls)}, and has not come back in {clean} "
        f"steps: {took} is too slow for a way of {round(fall)} doublings.",
        f"Set growth_interval to about {max(1, clean // (4 * round(fall)))}: the way back then takes a quarter of "
        "these steps, and each doubling risks one skipped step.",
    )


def _spike(history: History, _: Inferred) -> Iterator[Finding]:
    """Yield a finding for each burst of skips that a run came back from."""
    for burst in _bursts(history):
        if _backoffs(burst) < 2:
            continue
        first, last = burst[0], burst[-1]
        spike = _stands_out(history, history.norm, first, last) or _stands_out(history, history.loss, first, last)
        long_before = first.after - history.step[0] > 3 * (last.step - first.after)  # no search for a scale
        if _backoffs(burst) >= (2 if spike else DESCENT - 1) and (spike or long_before):
            yield Finding(
                "data spike",
                first.step,
                f"Between steps {first.after} and {last.step} the loss scale fell from {way(burst)}, "
                f"while {spike or 'neither norm nor loss of a step that was taken shows why'}.",
                "Look at the batches of these steps. Clipping keeps the steps that are not skipped from doing harm.",
            )


def _hidden_skips(history: History, known: Inferred) -> Iterator[Finding]:
    """Yield a finding where a log counts fewer skips than the fall of the scale takes."""
    hidden = [each for each in known.skips if each.hidden]
    if hidden:
        change, said = hidden[0].change, sum(each.said for each in hidden)
        yield Finding(
            "hidden skips",
            change.step,
            f"The log reports {counted(said, 'skipped step')} where the falls of the scale take at least "
            f"{sum(each.least for each in hidden)}, first between steps {change.after} and {change.step}: from "
            f"{way([change])} takes {hidden[0].least}.",
            "Do not rely on the log's own count; compare the scale before and after each step, or use ampsim.watch.",
        )


def _endless_growth(history: History, _: Inferred) -> Iterator[Finding]:
    """Yield a finding where the scale grows beyond all that gradients in float16 would bear."""
    last = history.changes[-1] if history.changes else None
    if last is None or last.fell or last.new < ENDLESS:
        return
    yield Finding(
        "endless growth",
        next(change.step for change in history.changes if change.new >= ENDLESS),
        f"The loss scale grew to {scale_text(last.new)} and meets no overflow there: each true gradient is below "
        f"{65504 / last.new:.2g}, or nobody looks for inf.",
        "Look whether gradients are zero, or None; whether they are float16 at all (bfloat16 and float32 need no loss "
        "scale); and whether the optimizer that steps is the one that the scaler is given.",
    )


def _bursts(history: History) -> Iterator[list[Change]]:
    """Yield falls that follow on each other, after a time in which the scale stood or grew."""
    burst: list[Change] = []
    gap = 3 * spacing(history)
    for change in history.changes:
        fell = change.new < change.old
        if burst and (not fell or change.after - burst[-1].step > gap):
            yield burst
            burst = []
        if fell:
            burst.append(change)
    if burst:
        yield burst


def _stands_out(history: History, values: Floats, first: Change, last: Change) -> str:
    """Return in words how a series stands out in a burst; nothing if it does not."""
    name = "the gradient norm" if values is history.norm else "the loss"
    begin, end = np.searchsorted(history.step, [first.after, last.step + 2 * spacing(history)], side="right")
    before, inside = values[max(0, begin - 100) : begin], values[begin:end]
    before, inside = before[np.isfinite(before)][-50:], inside[np.isfinite(inside)]
    if len(before) < 3 or not len(inside):
        return ""
    usual, peak = float(np.median(before)), float(inside.max())
    return f"{name} rose from about {usual:.3g} to {peak:.3g}" if peak > SPIKE[name] * usual > 0 else ""


def _before(history: History, values: Floats, step: int) -> float | None:
    """Return the median of the entries before a step; None if there are none."""
    found = values[(history.step < step) & np.isfinite(values)][-20:]
    return float(np.median(found)) if len(found) else None


LOOKS = (
    _forward_overflow, _scaled_norm, _floor, _collapse, _dead_layer, _interval, _spike, _hidden_skips, _endless_growth,
)  # fmt: skip
"""In the order in which one goes before another."""
