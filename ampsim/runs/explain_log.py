"""Explain a training log: a verdict, its findings, and what to try."""

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from os import PathLike
from typing import Any

import numpy as np

from ampsim.core.output import printable
from ampsim.runs.explain_json import plain, series_data
from ampsim.runs.explain_text import finding_lines, supporting_texts
from ampsim.runs.findings.evidence import Evidence, Skip
from ampsim.runs.findings.find import find
from ampsim.runs.findings.finding import SEVERITIES, Finding, table
from ampsim.runs.findings.split_runs import split_runs
from ampsim.runs.findings.summary import looked_at, missing, state
from ampsim.runs.findings.verdict import doubts
from ampsim.runs.read.history import History
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
        return printable("\n".join(self._lines(why=why)))

    def _lines(self, *, why: bool) -> Iterator[str]:
        findings, history = self.findings, self.history
        is_headline = bool(findings) and findings[0].message == self.headline
        title = findings[0].severity if is_headline else self.verdict
        yield f"{title.capitalize()}: {self.headline}"
        yield ""
        texts = supporting_texts(history.source, findings) if why else None
        yield from finding_lines(findings, texts, is_headline=is_headline)
        if self.looked_at:
            yield "Looked at:"
            yield from (f"  {each}" for each in self.looked_at)
            if self.missing:
                yield f"The log does not show {'; '.join(self.missing)}."
        yield from (f"Note: {note}" for note in history.notes)

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
            "series": [series_data(each, most) for each in self.history.series],
            "events": events,
        }
        return dict(plain(data))

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
    notes = [*history.notes, *_notes(at, runs)]
    return Explanation(
        verdict,
        headline,
        findings,
        looked_at=looked_at(run),
        missing=missing(run),
        history=dataclasses.replace(history, notes=notes),
        skips=run.skips,
    )


def _notes(at: int, runs: list[Evidence]) -> Iterator[str]:
    """Yield what a reader of the numbers of a run has to know."""
    run = runs[at]
    if run.history.recorded and len(runs) > 1:
        yield (
            f"{len(runs)} runs in this file; the numbers are those of run {at + 1}. To record a new run, "
            "pass a new path."
        )
    steps = max([*run.losses, *run.scales, run.norm], key=len).known_steps
    # A program that prints each hundredth step may begin with step 100.
    usual = max(1.0, float(np.median(np.diff(steps)))) if len(steps) > 1 else math.inf
    if at == 0 and len(steps) and steps[0] > usual:
        yield f"The log starts at step {steps[0]:.0f}; it does not show what came before."


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
        last, lowest = float(finding.values["last"]), float(finding.values["lowest"])
        return bool(abs(last) > row["lasting_rise"] * abs(lowest))
    return bool(row.get("lasting", "nonfinite" in row))


def _verdict(run: Evidence, findings: list[Finding]) -> tuple[str, str]:
    """Return the verdict on a run, and the first sentence of its report: a fact of the run."""
    if findings and findings[0].severity == "problem":
        return "problem", findings[0].message
    happened = state(run)
    if doubt := next(doubts(run, findings), ""):
        is_warning = bool(findings) and findings[0].severity == "warning"
        if is_warning and not run.history.series:  # a pasted text is no log
            return "too little to tell", findings[0].message
        why = f"This log is not enough for a verdict: {doubt}."
        return "too little to tell", f"{happened} {why}".strip()
    return "no problem found", happened or "Steps were taken up to the end of the log."


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
