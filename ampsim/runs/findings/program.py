"""Findings about what the program itself, or `ampsim.runs.watch`, reports."""

import re

from ampsim.runs.findings.evidence import Evidence, falls
from ampsim.runs.findings.finding import Finding, make, of_events
from ampsim.runs.read.error_texts import error_by_id


def known_error(run: Evidence) -> Finding | None:
    """A known error stands at the end of the log, or a known warning anywhere."""
    last = {identifier: (line, text) for line, identifier, text in run.history.errors}
    known = [
        _known(run, identifier, *last[identifier]) for identifier in reversed(last)
    ]
    return min(filter(None, known), key=lambda each: each.severity, default=None)


def _known(run: Evidence, identifier: str, line: int, text: str) -> Finding | None:
    row = error_by_id(identifier)
    kind = "warning" if row.get("warning") else "error"
    # An error that many programs raise counts only beside the name of its program.
    beside = any(re.search(row.get("of", ""), each) for each in run.history.texts)
    later = (int((series.lines > line).sum()) for series in [*run.losses, *run.scales])
    if not beside or (kind == "error" and max(later, default=0) > 5):
        return None
    message = f"The log contains a known {kind} on line {line}: {text[:160]}"
    severity = "warning" if kind == "warning" else "problem"
    identifier, actions = f"{kind}-{identifier}", (row["fix"],)
    return Finding(
        identifier,
        severity,
        "proved",
        message,
        (line,),
        cause=row["cause"],
        actions=actions,
    )


# Kind of event -> id, and lines that are enough if no number contradicts it.
REPORTS = {
    "unguarded": ("overflow-not-skipped", 1),
    "bad-parameters": ("parameters-not-finite", 1),
    "all-invalid": ("no-finite-gradient", 1),
    "bad-loss": ("loss-reported-not-finite", 2),
    "bad-norm": ("norm-reported-not-finite", 8),
}


def reported(run: Evidence) -> Finding | None:
    """The program reports values that are not finite, or that it updates with them."""
    kind = next(filter(run.kind, REPORTS), None)
    if kind is None:
        return None
    events, (identifier, enough) = run.kind(kind), REPORTS[kind]
    contradicted = enough > 1 and run.finite_losses_after(events[-1].line) > 0
    if kind == "unguarded":
        contradicted = (
            run.loss is None or len(run.loss) < 6 or falls(run.loss.finite) > 0.05
        )
    certain = len(events) >= enough or (not run.losses and kind == "bad-loss")
    severity = "problem" if certain and not contradicted else "warning"
    text = events[0].text[:90]
    return of_events(events, identifier, severity=severity, text=text)


def recorded_warning(run: Evidence) -> Finding | None:
    """`watch` warned, for example that no parameter changes."""
    if not run.history.warnings:
        return None
    step, text = run.history.warnings[0]
    return make("recorded-warning", step=step, at=step, text=text.rstrip("."))
