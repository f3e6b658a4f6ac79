"""Findings about what the program itself reports: errors, warnings, and values that are not finite."""

import re

from ampsim.runs.findings.evidence import Evidence
from ampsim.runs.findings.finding import Finding, of_events
from ampsim.runs.findings.loss import loss_falls_clearly
from ampsim.runs.read.error_texts import error_by_id


def known_error(run: Evidence) -> Finding | None:
    """A known error stands at the end of the log."""
    return _known(run, is_warning=False)


def known_warning(run: Evidence) -> Finding | None:
    """A known warning stands in the log."""
    return _known(run, is_warning=True)


def _known(run: Evidence, *, is_warning: bool) -> Finding | None:
    kind = "warning" if is_warning else "error"
    for line, identifier, text in reversed(run.history.errors):
        row = error_by_id(identifier)
        records = max(
            (int((series.lines > line).sum()) for series in [*run.losses, *run.scales]), default=0
        )
        # An error that many programs raise counts only beside the name of its program.
        beside = any(re.search(row.get("of", ""), each) for each in run.history.texts)
        if bool(row.get("warning")) is is_warning and beside and (is_warning or records <= 5):
            message = f"The log contains a known {kind} on line {line}: {text[:160]}"
            return Finding(
                f"{kind}-{identifier}",
                "warning" if is_warning else "problem",
                "proved",
                message,
                (line,),
            )
    return None


def overflow_not_skipped(run: Evidence) -> Finding | None:
    """The program reports that it updates in spite of an overflow."""
    events = run.kind("unguarded")
    if not events:
        return None
    learns = run.loss is None or len(run.loss.finite) < 6 or loss_falls_clearly(run)
    message = (
        f"The program reports on {len(events)} lines, first on line {events[0].line}, that it "
        "updates in spite of an overflow."
    )
    return of_events(
        events, "overflow-not-skipped", "warning" if learns else "problem", "proved", message
    )


REPORTS = {  # kind of event -> id, what the program reports, lines that are enough if no number contradicts it
    "bad-parameters": ("parameters-not-finite", "a parameter that is not finite", 1),
    "all-invalid": ("no-finite-gradient", "an epoch without a finite gradient", 1),
    "bad-loss": ("loss-reported-not-finite", "a loss that is not finite", 2),
    "bad-norm": ("norm-reported-not-finite", "gradients that are not finite", 8),
}


def reported_not_finite(run: Evidence) -> Finding | None:
    """The program reports values that are not finite."""
    for kind, (identifier, what, enough) in REPORTS.items():
        events = run.kind(kind)
        if not events:
            continue
        contradicted = run.finite_losses_after(events[-1].line) > 0
        certain = len(events) >= enough or (not run.losses and kind == "bad-loss")
        message = (
            f"The program reports {what} on {len(events)} lines, first on line {events[0].line}: "
            f"{events[0].text[:90]}"
        )
        severity = "problem" if enough == 1 or (certain and not contradicted) else "warning"
        return of_events(events, identifier, severity, "likely", message, times=len(events))
    return None
