"""The verdict on a run: a problem, no problem found, or too little to tell.

No problem is found in a run if the log shows that optimizer steps were taken up to its end, and if
nothing casts doubt on it. `_steps_were_taken` has what an engineer takes as enough evidence for the
first, and `_doubts` what is against the second. Both are likely, not proved.
"""

import math
from collections.abc import Iterator

import numpy as np

from ampsim.runs.findings.evidence import (
    MESSAGES,
    Evidence,
    falls,
    is_halved,
    lost,
    lost_at_end,
)
from ampsim.runs.findings.finding import Finding, number_text
from ampsim.runs.read.history import Series

FEW = 3
"""Records below which there is no verdict."""
DOUBTFUL = {  # finding -> why no run is called healthy beside it
    "loss-flat": "the loss does not fall in it",
    "loss-constant": "the loss does not fall in it",
    "loss-rose": "the loss is higher at its end than before",
    "norm-zero": "the gradient norm is printed as 0",
    "norm-underflows": "the gradient norm is printed as 0",
    "scaled-loss": "the loss is printed while it is multiplied by the loss scale",
    "loss-reported-not-finite": "the program reports losses that are not finite",
    "overflow-not-skipped": "the program updates in spite of an overflow",
    "loss-sometimes-not-finite": "some losses are not finite",
    "evaluation-not-finite": "the evaluation loss is not finite",
    "scale-low": "the loss scale ends below 1",
    "scale-endless-growth": "the loss scale grows without an overflow",
}


def verdict(run: Evidence, findings: list[Finding]) -> tuple[str, str]:
    """Return the verdict on a run and the first sentence of its report.

    Args:
        run: The run.
        findings: What `find` found in it, problems first.

    Returns:
        "problem", "no problem found", or "too little to tell"; and a fact of the run.
    """
    if findings and findings[0].severity == "problem":
        return "problem", findings[0].message
    parts, skips = _state(run), _skips(run)
    doubt = next(_doubts(run, [finding.id for finding in findings]), "")
    if doubt:
        doubt = f" This log is not enough for a verdict: {doubt}."
        return "too little to tell", f"{_sentence(parts + skips)}{doubt}".strip()
    parts = parts or ["steps were taken up to the end of the log"]
    return "no problem found", _sentence(parts + skips)


def _sentence(parts: list[str]) -> str:
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _state(run: Evidence) -> list[str]:
    """Return what happened to the loss and to the scale."""
    loss, scale, parts = (
        run.loss or next(iter(run.evaluations), None),
        run.scale,
        list[str](),
    )
    if loss is not None and len(loss.finite) > 1:
        change = f"{number_text(loss.finite[0])} to {number_text(loss.finite[-1])}"
        parts.append(f"the {loss.name} went from {change} over {len(loss)} records")
    if scale is not None:
        start, end = number_text(scale.values[0]), number_text(scale.values[-1])
        moved = f"the loss scale went from {start} to {end}"
        parts.append(
            moved if np.ptp(scale.finite) else f"the loss scale was {start} throughout"
        )
    return parts


def _skips(run: Evidence) -> list[str]:
    if run.skips_at_least:
        return [f"skipped steps: at least {run.skips_at_least}"]
    return ["no step was skipped"] if run.counters or run.flags else []


def _doubts(run: Evidence, ids: list[str]) -> Iterator[str]:
    """Yield why a log without a problem is not enough to call its run healthy."""
    skipped, steps = run.skip_share or (math.nan, 0.0)
    few_skips = run.counts_exactly and steps >= 20 and skipped <= 0.05 * steps
    numbers = [
        *run.losses,
        *run.scales,
        *run.evaluations,
        *([run.norm] if run.norm else []),
    ]
    records = max(map(len, numbers), default=0)
    if records < FEW and not few_skips:
        yield f"it has fewer than {FEW} records"
    if run.skips and not few_skips and not _goes_on(run):
        yield "it ends with skipped steps"
    if run.loss is not None:
        yield from _doubts_of_loss(run.loss)
    yield from (DOUBTFUL[each] for each in ids if each in DOUBTFUL)
    if not few_skips and not _steps_were_taken(run):
        yield "no line shows that an optimizer step was taken"
    yield from _doubts_of_norm(run)
    yield from _doubts_of_scale(run)


def _doubts_of_loss(loss: Series) -> Iterator[str]:
    finite = loss.finite
    if lost_at_end(loss):
        yield "its last loss is not finite"
    if loss.values[-1] == 0:
        yield "the last loss is printed as 0"
    if FEW <= len(finite) < 20 and not np.ptp(finite):
        yield DOUBTFUL["loss-constant"]
    if len(finite) and finite.min() > 0 and np.median(finite[-3:]) > 1.2 * finite[0]:
        yield "the loss is higher at its end than at its start"


def _doubts_of_norm(run: Evidence) -> Iterator[str]:
    norm, scale = run.norm, run.scale
    if norm is None:
        return
    if lost_at_end(norm):
        yield "its last gradient norm is not finite"
    # A mean over many steps is not finite if one of them overflows.
    is_mean = scale is not None and not is_halved(scale.values)
    if lost(norm.values[len(norm) // 2 :]).mean() > 1 / 4 and not is_mean:
        yield "many of its gradient norms are not finite"
    if len(norm.finite) >= 10 and not np.ptp(norm.values[-8:]):
        yield "the gradient norm stands still, as if no new one was computed"


def _doubts_of_scale(run: Evidence) -> Iterator[str]:
    scale = run.scale
    if scale is None:
        enabled = any(
            "fp16_enabled" in text and "True" in text for text in run.history.texts
        )
        if run.kind("off") and not enabled and not run.losses:
            yield "the program reports that fp16 is off, so there is no loss scale to check"
        return
    if scale.values[-1] == 0:
        yield "the loss scale is printed as 0"
    ends_skipped = bool(run.skips) and run.finite_losses_after(run.skips[-1].line) < FEW
    if scale.values[-1] <= 1 and ends_skipped and not run.has_sum_loss:
        yield "steps overflow at a loss scale of 1"
    if _falls_often(scale):
        yield "the loss scale falls between many of its records"


def _steps_were_taken(run: Evidence) -> bool:
    """Return whether the log shows that steps were taken; a loss alone has to fall clearly.

    A scaler skips each step whose norm is not finite, and its scale grows after finite steps only.
    """
    has_norms = run.norm is not None and len(run.norm) >= 6
    is_long = run.loss is None or len(run.loss) >= 20  # a shorter one may stay
    scales = np.array([]) if run.scale is None else run.scale.values
    risen = scales[1:][
        np.diff(scales) > 0
    ]  # a number that is cut, such as 6.9 of 6.9e-18, is none
    if is_halved(risen) or (is_long and has_norms) or _reports_ended(run):
        return True
    if (has_norms or len(scales)) and any(falls(loss.finite) for loss in run.losses):
        return True
    return any(map(_falls_clearly, [*run.losses, *run.evaluations]))


def _falls_clearly(loss: Series) -> bool:
    """Return whether a loss alone shows training: it is finite, and it falls far or surely."""
    values, fall = loss.values, falls(loss.values)
    # Each number of the second half is below each of the first quarter.
    if (
        len(values) >= 8
        and values[len(values) // 2 :].max() < values[: len(values) // 4].min()
    ):
        return fall >= 0.02
    surely = len(values) >= 12 or bool((np.diff(values) < 0).all())
    return fall >= (0.05 if surely else 0.25)


def _reports_ended(run: Evidence) -> bool:
    """Return whether a program that reports skipped steps reports none in the last 100 steps."""
    reports = run.kind("skip")
    later = [
        loss.between(reports[-1].line, run.end + 1) for loss in run.losses if reports
    ]
    return any(len(each) >= FEW and np.ptp(each.steps) >= 100 for each in later)


def _goes_on(run: Evidence) -> bool:
    """Return whether records follow the last skip, or few steps at the end were skipped."""
    records = [*run.losses, *([run.norm] if run.norm else [])]
    records += [each.series for each in run.counters if run.counts_exactly]
    records += [each.series.part(each.skipped == 0) for each in run.flags]
    if any((each.lines > run.skips[-1].line).any() for each in records):
        return True
    longest = max(records, key=len, default=None)
    if longest is None or len(longest) < 8:
        return False
    return sum(skip.count for skip in run.skips if skip.line > longest.lines[-3]) <= 2


def _falls_often(scale: Series) -> bool:
    """Return whether a scale falls on over an eighth of the later records, which hide more skips.

    Records that are many steps apart show the fall and the rise of each growth interval.
    """
    if scale.name == MESSAGES:
        return False
    late = scale.part(slice(len(scale) // 2, None))
    moves = np.diff(late.values)
    is_far_apart = late.steps[-1] - late.steps[0] >= 500 * len(moves)
    often = int((moves > 0).sum()) >= 2 and float(np.mean(moves < 0)) > 1 / 8
    return is_halved(late.values) and often and not is_far_apart
