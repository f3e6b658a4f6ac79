"""Explain a training log: a verdict, its findings, and what to try."""

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from os import PathLike
from typing import Any

import numpy as np

from ampsim.core.lines import Lines
from ampsim.core.output import printable
from ampsim.runs.findings.evidence import Evidence, Skip
from ampsim.runs.findings.find import find
from ampsim.runs.findings.finding import SEVERITIES, Finding, number_text, table
from ampsim.runs.findings.split_runs import split_runs
from ampsim.runs.findings.verdict import doubts
from ampsim.runs.read.history import History, Series
from ampsim.runs.read.read import read_log
from ampsim.runs.read.text import Rows
from ampsim.runs.report.exponent_heatmap import exponent_heatmap

MOST_SHOWN, LONGEST_SHOWN = 10, 160
"""Lines of a finding, and characters of a line, that a report with reasons shows."""
MOST_ACTIONS = {"problem": 9, "warning": 1}
"""Severity -> how much advice a report has for a finding; none for others."""
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
        skips: Skipped steps that the log places.
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

    >>> lines = [f"step {i}: loss {4 - i / 10:.2f}, loss_scale 65536" for i in range(20)]
    >>> print(explain(lines).verdict)
    no problem found

    Args:
        source: Path of a log, its lines, or the result of `read_log`. See `read_log` for the
            formats.

    Returns:
        The diagnosis. Its ``verdict`` is "problem", "no problem found", or "too little to tell".

    Raises:
        OSError: If the file cannot be read.
        ImportError: If a tracker's file needs a package that is missing.
        ValueError: If the file is damaged, or has no loss, loss scale, or gradient norm.
    """
    history = source if isinstance(source, History) else read_log(source)
    with np.errstate(all="ignore"):  # of numbers that no run has
        runs = [Evidence(part) for part in split_runs(history)]
        found = [find(run) for run in runs]
        at = _shown(runs, found)
        findings = found[at] + _of_earlier_runs(runs, found)
        findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
        verdict, headline = _verdict(runs[at], findings)
    if verdict == "problem":
        findings[0] = _with_hints(findings[0], history)
    if at < len(runs) - 1:
        headline = f"{_of_run(at, runs)}{headline}"
    run = runs[at]
    looked_at, missing = _looked_at(run), _missing(run)
    return Explanation(
        verdict, headline, findings, looked_at, missing, history, run.skips
    )


def _shown(runs: list[Evidence], found: list[list[Finding]]) -> int:
    """Return which run of a log is shown: the last, or the longest if the last goes on from it.

    A program that is restarted prints a few records that show neither a problem nor training.
    """
    last = len(runs) - 1
    longest = max(range(len(runs)), key=lambda at: runs[at].record_count)
    is_short = 4 * runs[last].record_count <= runs[longest].record_count
    first = runs[longest].loss.finite[:1]
    is_lower = len(first) > 0 and bool((runs[last].loss.values <= 1.2 * first).all())
    return longest if is_short and is_lower and not found[last] else last


def _of_earlier_runs(runs: list[Evidence], found: list[list[Finding]]) -> list[Finding]:
    """Return the problem that each earlier run of a log ended with, if no run can go on with it."""
    earlier = []
    for at, findings in enumerate(found[:-1]):
        first = next(iter(findings), None)
        if first and first.severity == "problem" and _is_lasting(first):
            message = f"{_of_run(at, runs)}{first.message}"
            earlier.append(dataclasses.replace(first, message=message))
    return earlier


def _of_run(at: int, runs: list[Evidence]) -> str:
    first = min(int(series.lines[0]) for series in runs[at].history.series)
    lines = f"lines {first} to {runs[at].end}"
    return f"In run {at + 1} of {len(runs)} in this log ({lines}): "


def _is_lasting(finding: Finding) -> bool:
    """Return whether no run goes on from a problem."""
    row = table().get(finding.id, {})
    if "lasting_rise" in row:
        rise = float(finding.values["last"]) / float(finding.values["lowest"])
        return bool(abs(rise) > row["lasting_rise"])
    return bool(row.get("lasting", "nonfinite" in row))


def _verdict(run: Evidence, findings: list[Finding]) -> tuple[str, str]:
    """Return the verdict on a run, and the first sentence of its report: a fact of the run."""
    if findings and findings[0].severity == "problem":
        return "problem", findings[0].message
    state = _state(run)
    if doubt := next(doubts(run, findings), ""):
        is_warning = bool(findings) and findings[0].severity == "warning"
        if is_warning and not run.history.series:  # a pasted text is no log
            return "too little to tell", findings[0].message
        why = f"This log is not enough for a verdict: {doubt}."
        return "too little to tell", f"{state} {why}".strip()
    return "no problem found", state or "Steps were taken up to the end of the log."


def _state(run: Evidence) -> str:
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


def _with_hints(finding: Finding, history: History) -> Finding:
    """Put advice whose cause stands in the log before the advice of the finding."""
    if "nonfinite" not in table().get(finding.id, {}):
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


def _missing(run: Evidence) -> list[str]:
    """Return what a verdict needs and the log does not show."""
    wanted = {
        "the loss scale (print scaler.get_scale() beside the loss)": run.scales,
        "how many steps were skipped": run.counters or run.skips,
        "the gradient norm (after scaler.unscale_)": run.norm,
        "the training loss": run.losses,
    }
    return [text for text, shown in wanted.items() if not shown]


# ---- text


def _report_lines(explanation: Explanation, *, why: bool) -> Iterator[str]:
    findings = explanation.findings
    headline = explanation.headline
    is_headline = bool(findings) and findings[0].message == headline
    title = findings[0].severity if is_headline else explanation.verdict
    yield f"{title.capitalize()}: {headline}"
    yield ""
    given: set[str] = set()
    texts = _texts_of(explanation) if why else {}
    for number, finding in enumerate(findings):
        if number or not is_headline:
            yield _message_line(finding)
        yield from _advice_lines(
            finding, given, "Also try" if number else "What to try first"
        )
        if why:
            yield from _reason_lines(finding, texts)
        if finding.severity == "problem":
            yield ""
    if explanation.looked_at:
        yield "Looked at:"
        yield from (f"  {each}" for each in explanation.looked_at)
        if explanation.missing:
            yield f"The log does not show {'; '.join(explanation.missing)}."
    yield from (f"Note: {note}" for note in explanation.history.notes)


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


def _texts_of(explanation: Explanation) -> dict[int, str]:
    """Return the lines that support the findings, with their places, by number; none if the log is
    no text.
    """
    findings = explanation.findings
    wanted = {line for finding in findings for line in finding.lines[:MOST_SHOWN]}
    with suppress(OSError, ValueError):
        return {
            row.number: f"{row.place}: {row.text.strip()[:LONGEST_SHOWN]}"
            for row in Rows(Lines(explanation.history.source))
            if row.number in wanted
        }
    return {}


# ---- JSON


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
