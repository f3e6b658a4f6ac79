"""Findings about what the program itself, or `ampsim.runs.watch`, reports."""

import re
from collections.abc import Iterator

from ampsim.runs.findings.evidence import Evidence, falls
from ampsim.runs.findings.finding import SEVERITIES, Finding, make, of_events
from ampsim.runs.read.error_texts import error_by_id


def known_error(run: Evidence) -> Iterator[Finding]:
    """A known error stands at the end of the log, or a known warning anywhere."""
    last = {identifier: (line, text) for line, identifier, text in run.history.errors}
    known = list[Finding]()
    for identifier, (line, text) in reversed(last.items()):
        row = error_by_id(identifier)
        kind = "warning" if row.get("warning") else "error"
        # An error that many programs raise counts only beside the name of its program.
        beside = any(re.search(row.get("of", ""), each) for each in run.history.texts)
        series = [*run.losses, *run.scales]
        later = max(((each.lines > line).sum() for each in series), default=0)
        if not beside or (kind == "error" and later > 5):
            continue
        finding = Finding(
            f"{kind}-{identifier}",
            "warning" if kind == "warning" else "problem",
            "proved",
            f"The log contains a known {kind} on line {line}: {text[:160]}",
            (line,),
            cause=row["cause"],
            actions=(row["fix"], f"See docs/errors/{identifier}.md for an example."),
        )
        known.append(finding)
    yield from sorted(known, key=lambda each: SEVERITIES.index(each.severity))


# Kind of event -> id, and lines that are enough if no number contradicts it.
REPORTS = {
    "unguarded": ("overflow-not-skipped", 1),
    "bad-parameters": ("parameters-not-finite", 1),
    "all-invalid": ("no-finite-gradient", 1),
    "bad-loss": ("loss-reported-not-finite", 2),
    "bad-norm": ("norm-reported-not-finite", 8),
}


def reported(run: Evidence) -> Iterator[Finding]:
    """The program reports values that are not finite, or that it updates with them."""
    for kind in filter(run.kind, REPORTS):
        events, (identifier, enough) = run.kind(kind), REPORTS[kind]
        certain = len(events) >= enough or not run.losses
        contradicted = enough > 1 and run.finite_losses_after(events[-1].line) > 0
        if kind == "unguarded":
            contradicted = len(run.loss) < 6 or falls(run.loss.finite) > 0.05
        severity = "problem" if certain and not contradicted else "warning"
        text = events[0].text[:90]
        yield of_events(events, identifier, severity=severity, text=text)


def recorded_warning(run: Evidence) -> Iterator[Finding]:
    """`watch` warned, for example that no parameter changes."""
    for step, text in run.history.warnings[:1]:
        yield make("recorded-warning", step=step, at=step, text=text.rstrip("."))
