"""What a log shows of a run in words: what happened, what was looked at, and what is missing."""

import numpy as np

from ampsim.runs.findings.evidence import Evidence
from ampsim.runs.findings.finding import number_text


def state(run: Evidence) -> str:
    """Return what happened to the loss, to the scale, and how many steps were skipped; "" for none."""
    parts = []
    for loss in [*run.losses, *run.evaluations][:1]:
        change = " to ".join(
            map(number_text, loss.values[[0, -1]] if len(loss.finite) else ())
        )
        if change:
            parts.append(
                f"the {loss.label} went from {change} over {len(loss)} records"
            )
    if run.scale:
        start, end = map(number_text, run.scale.values[[0, -1]])
        is_static = not np.ptp(run.scale.finite)
        change = (
            f"was {start} throughout" if is_static else f"went from {start} to {end}"
        )
        parts.append(f"the loss scale {change}")
    if run.skips_at_least:
        parts.append(f"skipped steps: at least {run.skips_at_least}")
    elif run.counters or run.flags:
        parts.append("no step was skipped")
    text = "; ".join(parts)
    return text and f"{text[0].upper()}{text[1:]}."


def looked_at(run: Evidence) -> list[str]:
    """Return each series that was looked at, in words."""
    counts = [column.records for column in [*run.counters[:2], *run.flags[:1]]]
    shown = [*run.losses[:3], *run.scales[:4], run.norm, *counts, *run.evaluations[:2]]
    texts = []
    for series in filter(None, shown):
        lost = len(series) - len(series.finite)
        text = f"{series.label} (records: {len(series)}"
        text += f", not finite: {lost})" if lost else ")"
        if len(series.finite):
            names = ("first", "last", "lowest", "highest")
            ends = series.values[[0, -1]]
            values = [*ends, series.finite.min(), series.finite.max()]
            pairs = zip(names, map(number_text, values), strict=True)
            text += ": " + ", ".join(map(" ".join, pairs))
        texts.append(text)
    return texts


def missing(run: Evidence) -> list[str]:
    """Return what a verdict needs and the log does not show."""
    wanted = {
        "the loss scale (print scaler.get_scale() beside the loss)": run.scales,
        "how many steps were skipped": run.counters or run.skips,
        "the gradient norm (after scaler.unscale_)": run.norm,
        "the training loss": run.losses,
    }
    return [text for text, shown in wanted.items() if not shown]
