"""Explain a training log: a verdict, its findings, and what to try."""

import dataclasses
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from os import PathLike
from typing import Any

import numpy as np

from ampsim.core.output import printable
from ampsim.runs.findings.evidence import Evidence, Skip
from ampsim.runs.findings.find import find
from ampsim.runs.findings.finding import SEVERITIES, Finding, number_text, table
from ampsim.runs.findings.split_runs import split_runs
from ampsim.runs.findings.verdict import doubts
from ampsim.runs.read.history import History, Series
from ampsim.runs.read.read import read_log
from ampsim.runs.report.exponent_heatmap import exponent_heatmap

VERSION = 2
"""Version of the JSON of `Explanation.to_json`."""
STATUS = {"no problem found": 0, "problem": 1, "too little to tell": 3}
"""Verdict -> exit status."""


@dataclass(frozen=True)
class Explanation:
    """A diagnosis of one log.

    Attributes:
        verdict: "problem", "no problem found", or "too little to tell".
        headline: The first sentence: a fact of the run.
        findings: Findings, the most important first.
        looked_at: What was read, one sentence for each series.
        missing: What the log does not show.
        history: The log as it was read.
        skips: Skipped steps that the log places: (first step, last step, count, scale, line).
    """

    verdict: str
    headline: str
    findings: list[Finding]
    looked_at: list[str]
    missing: list[str]
    history: History
    skips: list[Skip]

    @property
    def problems(self) -> list[Finding]:
        """The findings that are problems."""
        return [finding for finding in self.findings if finding.severity == "problem"]

    @property
    def status(self) -> int:
        """Exit status of `ampsim explain`."""
        return STATUS[self.verdict]

    def __str__(self) -> str:
        """Return the report as text."""
        return self.text()

    def text(self, *, why: bool = False) -> str:
        """Return the report as text.

        Args:
            why: Whether to add the lines of the log that support each finding.

        Returns:
            The lines that `ampsim explain` prints.
        """
        return printable("\n".join(_report_lines(self, why=why)))

    def to_json(self, most: int | None = None) -> dict[str, Any]:
        """Return the diagnosis as JSON data.

        The data has all that a report page draws. inf and NaN are strings.

        Args:
            most: How many numbers of a series to keep, at least 4: of more, the first, least,
                largest, and last of each part. None keeps all.

        Returns:
            The data, for `json.dumps`.
        """
        scale = next(iter(self.history.role("scale")), None)
        events = [dataclasses.asdict(event) for event in self.history.events]
        data = {
            "version": VERSION,
            "source": self.history.source,
            "verdict": self.verdict,
            "summary": self.headline,
            "findings": [dataclasses.asdict(each) for each in self.findings],
            "looked_at": self.looked_at,
            "missing": self.missing,
            "notes": self.history.notes,
            "settings": self.history.settings,
            "nonfinite": {
                str(step): names for step, names in self.history.nonfinite.items()
            },
            "exponents": exponent_heatmap(self.history, scale),
            "skips": [skip._asdict() for skip in self.skips],
            "series": [_series_data(each, most) for each in self.history.series],
            "events": events,
        }
        return dict(_plain(data))

    def _repr_html_(self) -> str:
        """Return the report for a notebook."""
        return f'<pre style="white-space:pre-wrap">{escape(self.text())}</pre>'


def explain(source: str | PathLike[str] | Iterable[str] | History) -> Explanation:
    """Diagnose a training run from its log.

    Args:
        source: Path of a log, its lines, or the result of `read_log`. See `read_log` for the
            formats.

    Returns:
        The diagnosis. Its ``verdict`` is "problem", "no problem found", or "too little to tell".

    Raises:
        OSError: If the file cannot be read.
        ImportError: If a tracker's file needs a package that is missing.
        ValueError: If the file is damaged, or has no loss, loss scale, or gradient norm.

    Example:
        >>> lines = [f"step {i}: loss {4 - i / 10:.2f}, loss_scale 65536" for i in range(20)]
        >>> print(explain(lines).verdict)
        no problem found
    """
    history = source if isinstance(source, History) else read_log(source)
    runs = split_runs(history)
    with np.errstate(all="ignore"):  # of numbers that no run has
        earlier = _of_earlier_runs(runs)
        found = _diagnosis(history, runs[-1], earlier)
        longest = max(runs, key=_size)
        if found.verdict == "too little to tell" and _goes_on(longest, runs[-1]):
            place = f"In run {runs.index(longest) + 1} of {len(runs)} in this log: "
            longer = _diagnosis(history, longest, earlier)
            found = dataclasses.replace(longer, headline=f"{place}{longer.headline}")
    return found


def _diagnosis(history: History, part: History, earlier: list[Finding]) -> Explanation:
    """Return the diagnosis of one run of a log, with what earlier runs ended with."""
    run = Evidence(part)
    findings = find(run) + earlier
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    state = _state(run)
    if findings and findings[0].severity == "problem":
        answer, headline = "problem", findings[0].message
        findings[0] = _with_hints(findings[0], history)
    elif doubt := next(doubts(run, findings), ""):
        answer = "too little to tell"
        headline = f"{state} This log is not enough for a verdict: {doubt}.".strip()
    else:
        answer = "no problem found"
        headline = state or "Steps were taken up to the end of the log."
    looked_at, missing = _looked_at(run), _missing(run)
    return Explanation(
        answer, headline, findings, looked_at, missing, history, run.skips
    )


def _state(run: Evidence) -> str:
    """Return what happened to the loss, to the scale, and how many steps were skipped; "" for none."""
    loss, scale, parts = (
        next(iter([*run.losses, *run.evaluations]), None),
        run.scale,
        [],
    )
    if loss and len(loss.finite) > 1:
        change = f"{number_text(loss.finite[0])} to {number_text(loss.finite[-1])}"
        parts.append(f"the {loss.name} went from {change} over {len(loss)} records")
    if scale:
        start, end = number_text(scale.values[0]), number_text(scale.values[-1])
        moved = f"the loss scale went from {start} to {end}"
        still = f"the loss scale was {start} throughout"
        parts.append(moved if np.ptp(scale.finite) else still)
    if run.skips_at_least:
        parts.append(f"skipped steps: at least {run.skips_at_least}")
    elif run.counters or run.flags:
        parts.append("no step was skipped")
    text = "; ".join(parts)
    return text and f"{text[0].upper()}{text[1:]}."


def _size(part: History) -> int:
    """Return how many records a part of a log has."""
    return max(
        map(len, [*part.role("loss"), *part.role("scale"), *part.role("norm")]),
        default=0,
    )


def _goes_on(longest: History, last: History) -> bool:
    """Return whether the last run of a log is short, and its loss is no higher than that of the
    longest run.
    """
    begin, end = Evidence(longest).loss, Evidence(last).loss
    if 4 * _size(last) > _size(longest) or not len(begin.finite):
        return False
    return not last.events and bool((end.values <= 1.2 * begin.finite[0]).all())


def _of_earlier_runs(runs: list[History]) -> list[Finding]:
    """Return the problem that each earlier run of a log ended with."""
    findings = []
    for number, part in enumerate(runs[:-1], 1):
        problems = [each for each in find(Evidence(part)) if each.severity == "problem"]
        for finding in filter(_is_lasting, problems[:1]):
            message = f"In run {number} of {len(runs)} in this log: {finding.message}"
            findings.append(dataclasses.replace(finding, message=message))
    return findings


def _is_lasting(finding: Finding) -> bool:
    """Return whether a run cannot go on with a problem."""
    return (
        "nonfinite" in table().get(finding.id, ()) and finding.id != "skips-too-often"
    )


def _with_hints(finding: Finding, history: History) -> Finding:
    """Put advice whose cause stands in the log before the advice of the finding."""
    if "nonfinite" not in table().get(finding.id, ()):
        return finding
    text = "\n".join([*history.texts, json.dumps(history.settings, default=str)])
    hints = [
        row["advice"]
        for row in table()["hints"]
        if re.search(row["pattern"], text, re.IGNORECASE)
    ]
    return dataclasses.replace(finding, actions=(*hints, *finding.actions))


def _looked_at(run: Evidence) -> list[str]:
    """Return each series that was looked at, in words."""
    counts = [column.records for column in [*run.counters[:2], *run.flags[:1]]]
    series = [*run.losses[:3], *run.scales[:4], run.norm, *counts, *run.evaluations[:2]]
    return [_summary(each) for each in series if each]


def _summary(series: Series) -> str:
    finite, lost = series.finite, len(series) - len(series.finite)
    counts = f"records: {len(series)}" + (f", not finite: {lost}" if lost else "")
    if not len(finite):
        return f"{series.name} ({counts})"
    first, last, lowest, highest = map(
        number_text, (finite[0], finite[-1], finite.min(), finite.max())
    )
    values = f"first {first}, last {last}, lowest {lowest}, highest {highest}"
    return f"{series.name} ({counts}): {values}"


def _missing(run: Evidence) -> list[str]:
    """Return what a verdict needs and the log does not show."""
    wanted = {
        "the loss scale (print scaler.get_scale() beside the loss)": run.scales,
        "how many steps were skipped": run.counters or run.skips,
        "the gradient norm (after scaler.unscale_)": run.norm,
        "the training loss": run.losses,
    }
    return [text for text, shown in wanted.items() if not shown]


def _report_lines(explanation: Explanation, *, why: bool) -> list[str]:
    lines = [f"{explanation.verdict.capitalize()}: {explanation.headline}", ""]
    given: set[str] = set()
    for number, finding in enumerate(explanation.problems):
        lines += [finding.message] if number else []
        lines += _advice(finding, given, first=number == 0)
        lines += _support(finding) if why else []
        lines.append("")
    others = [
        finding for finding in explanation.findings if finding.severity != "problem"
    ]
    for finding in others:
        lines.append(f"{finding.severity.capitalize()}: {finding.message}")
        if finding.severity == "warning" and finding.actions:
            lines.append(f"  Try: {finding.actions[0]}")
        lines += _support(finding) if why else []
    lines += [""] if others else []
    lines += [
        "Looked at:",
        *(
            f"  {each}"
            for each in explanation.looked_at or ["nothing with a known name"]
        ),
    ]
    if explanation.missing:
        lines.append(f"The log does not show {'; '.join(explanation.missing)}.")
    return lines + [f"Note: {note}" for note in explanation.history.notes]


def _advice(finding: Finding, given: set[str], *, first: bool) -> list[str]:
    """Return the cause and the actions of a problem; an action is given once."""
    lines = [f"  Likely cause: {finding.cause}"] if finding.cause else []
    actions = [action for action in finding.actions if action not in given]
    given.update(actions)
    if actions:
        lines.append("  What to try first:" if first else "  Also try:")
        lines += [f"    {number}. {action}" for number, action in enumerate(actions, 1)]
    return lines


def _support(finding: Finding) -> list[str]:
    """Return the id, the level, and the first lines of a finding."""
    lines = ", ".join(map(str, finding.lines[:10]))
    return [f"  [{finding.id}, {finding.level}; lines {lines or 'unknown'}]"]


def _series_data(series: Series, most: int | None) -> dict[str, Any]:
    kept = series
    if most is not None and len(series) > most:
        # The first, least, largest, and last number of each part are drawn as all of them are.
        rows = list[int]()
        for part in np.array_split(np.arange(len(series)), most // 4):
            values = np.nan_to_num(series.values[part])
            extremes = [0, int(values.argmin()), int(values.argmax()), -1]
            rows += part[extremes].tolist()
        kept = series.part(np.unique(rows))
    columns = {"line": kept.lines, "step": kept.steps, "value": kept.values}
    data = {name: column.tolist() for name, column in columns.items()}
    return {"name": series.name, "role": series.role, "rank": series.rank, **data}


def _plain(value: Any) -> Any:
    """Return data without inf and NaN, which JSON does not have, and without invisible characters."""
    if isinstance(value, float):
        return value if math.isfinite(value) else re.sub("^nan$", "NaN", str(value))
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_plain(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
