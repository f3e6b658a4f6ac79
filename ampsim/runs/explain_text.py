"""The findings of an explanation as text, with the lines of the log that support them."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from ampsim.core.lines import Lines
from ampsim.runs.findings.finding import Finding
from ampsim.runs.read.text import Rows

MOST_SHOWN, LONGEST_SHOWN = 10, 160
"""Lines of a finding, and characters of a line, that a report with reasons shows."""
MOST_ACTIONS = {"problem": 9, "warning": 1}
"""Severity -> how much advice a report has for a finding; none for others."""


def finding_lines(
    findings: Sequence[Finding], texts: dict[int, str] | None, *, is_headline: bool
) -> Iterator[str]:
    """Yield each finding, what to try, and the lines that support it.

    Args:
        findings: The findings.
        texts: What `supporting_texts` returns; None for a report without these lines.
        is_headline: Whether the message of the first finding is already written.
    """
    given: set[str] = set()
    for number, finding in enumerate(findings):
        if number or not is_headline:
            yield _message_line(finding)
        title = "Also try" if number else "What to try first"
        yield from _advice_lines(finding, given, title)
        if texts is not None:
            yield from _reason_lines(finding, texts)
        if finding.severity == "problem":
            yield ""


def supporting_texts(source: str, findings: Sequence[Finding]) -> dict[int, str]:
    """Return the lines that support the findings, with their places, by number; none if the log is
    no text.
    """
    wanted = {line for finding in findings for line in finding.lines[:MOST_SHOWN]}
    with suppress(OSError, ValueError):
        return {
            row.number: f"{row.place}: {row.text.strip()[:LONGEST_SHOWN]}"
            for row in Rows(Lines(source))
            if row.number in wanted
        }
    return {}


def _message_line(finding: Finding) -> str:
    if finding.severity == "problem":
        return finding.message
    return f"{finding.severity.capitalize()}: {finding.message}"


def _advice_lines(finding: Finding, given: set[str], title: str) -> Iterator[str]:
    """Yield the cause and what to try, without what was `given` before, and add to it."""
    if finding.severity == "problem" and finding.cause:
        yield f"  Likely cause: {finding.cause}"
    most = MOST_ACTIONS.get(finding.severity, 0)
    actions = [each for each in finding.actions[:most] if each not in given]
    given.update(actions)
    if actions:
        yield f"  {title}:"
    yield from (f"    {at}. {each}" for at, each in enumerate(actions, 1))


def _reason_lines(finding: Finding, texts: dict[int, str]) -> Iterator[str]:
    """Yield the lines of the log that support a finding, and how many are not shown."""
    yield f"  [{finding.id}, {finding.level}]"
    for line in finding.lines[:MOST_SHOWN]:
        yield f"    {texts.get(line, f'{line}: ')}"
    total = len(finding.lines)
    if total > MOST_SHOWN:
        yield f"    {MOST_SHOWN} of {total} lines; --json lists all {total}"
