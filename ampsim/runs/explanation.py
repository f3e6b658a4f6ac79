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
import numpy.typing as npt

from ampsim.core.output import printable
from ampsim.runs.causes import OF_NONFINITE, advice_in
from ampsim.runs.exponents import exponents
from ampsim.runs.findings.evidence import (
    MESSAGES,
    Evidence,
    falls,
    halvings,
    is_halved,
    lost,
    lost_at_end,
)
from ampsim.runs.findings.find import SEVERITIES, find
from ampsim.runs.findings.finding import Finding, number_text
from ampsim.runs.read.history import Floats, History, Series
from ampsim.runs.read.read import read_log
from ampsim.runs.split import split_runs

VERSION = 2
"""Version of the JSON of `Explanation.to_json`."""
STATUS = {"no problem found": 0, "problem": 1, "too little to tell": 3}
"""Verdict -> exit status."""
FEW = 3
"""Records below which there is no verdict."""
# Problems that an earlier run in the same log ends with.
_LASTING = OF_NONFINITE - {"skips-too-often"} | {"scale-endless-growth"}


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
    skips: list[tuple[float, float, int, float, int]]

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
        """
        return printable("\n".join(_report_lines(self, why=why)))

    def to_json(self, most: int | None = None) -> dict[str, Any]:
        """Return the diagnosis as JSON data, with all that a report page draws. inf and NaN are strings.

        Args:
            most: How many numbers of a series to keep, at least 4: of more, the first, least, largest, and last of
                each part. None keeps all.

        Returns:
            The data, for `json.dumps`.
        """
        findings = [
            {**dataclasses.asdict(each), "cause": each.cause, "actions": each.actions}
            for each in self.findings
        ]
        layers = exponents(self.history, next(iter(self.history.role("scale")), None))
        events = [dataclasses.asdict(event) for event in self.history.events]
        data = {
            "version": VERSION,
            "source": self.history.source,
            "verdict": self.verdict,
            "summary": self.headline,
            "findings": findings,
            "looked_at": self.looked_at,
            "missing": self.missing,
            "notes": self.history.notes,
            "settings": {name: _setting(value) for name, value in self.history.settings.items()},
            "nonfinite": {str(step): names for step, names in self.history.nonfinite.items()},
            "exponents": layers and layers.to_json(),
            "skips": [
                dict(zip(("first", "last", "count", "scale", "line"), skip, strict=True))
                for skip in self.skips
            ],
            "series": [_series_data(each, most) for each in self.history.series],
            "events": events,
        }
        return dict(_plain(data))

    def _repr_html_(self) -> str:
        """Return the report for a notebook."""
        colors = {
            "problem": "#c44f00",
            "no problem found": "#00795a",
            "too little to tell": "#a86f00",
        }
        first, _, rest = self.text().partition("\n")
        return (
            f'<div><strong style="color:{colors[self.verdict]}">{escape(first)}</strong>'
            f'<pre style="white-space:pre-wrap">{escape(rest.strip())}</pre></div>'
        )


def explain(source: str | PathLike[str] | Iterable[str] | History) -> Explanation:
    """Diagnose a training run from its log.

    Args:
        source: Path of a log, its lines, or the result of `read_log`. See `read_log` for the formats.

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
        run = Evidence(runs[-1])
        findings = find(run) + _of_earlier_runs(runs)
        verdict, headline = _verdict(run, findings)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    if findings and findings[0].severity == "problem":
        findings[0] = _with_causes(findings[0], history)
        headline = findings[0].message
    skips = [dataclasses.astuple(skip) for skip in run.skips]
    return Explanation(verdict, headline, findings, _looked_at(run), _missing(run), history, skips)


def _of_earlier_runs(runs: list[History]) -> list[Finding]:
    """Return the problem that each earlier run of a log ended with."""
    findings = []
    for number, part in enumerate(runs[:-1], 1):
        lasting = [
            each
            for each in find(Evidence(part))
            if each.severity == "problem" and each.id in _LASTING
        ]
        for finding in lasting[:1]:
            message = f"In run {number} of {len(runs)} in this log: {finding.message}"
            findings.append(dataclasses.replace(finding, message=message))
    return findings


def _with_causes(finding: Finding, history: History) -> Finding:
    """Put advice whose cause stands in the log before the advice of the finding."""
    known = advice_in([*history.texts, json.dumps(history.settings, default=str)])
    if finding.id not in OF_NONFINITE or not known:
        return finding
    return dataclasses.replace(finding, hints=known)


def _verdict(run: Evidence, findings: list[Finding]) -> tuple[str, str]:
    """Return the verdict and the first sentence."""
    problems = [finding for finding in findings if finding.severity == "problem"]
    if problems:
        return "problem", problems[0].message
    state, doubt = _state(run), _doubt(run, {finding.id for finding in findings})
    if doubt:
        state = f"{state} " if state else ""
        return "too little to tell", f"{state}This log is not enough for a verdict: {doubt}."
    share = run.skip_share
    counted_state = (
        f"{share[0]:.0f} of the last {share[1]:.0f} steps were skipped." if share else ""
    )
    return (
        "no problem found",
        state or counted_state or "The gradient norms at the end of the log are finite.",
    )


DOUBTFUL = {
    "loss-rose",
    "norm-zero",
    "norm-underflows",
    "scaled-loss",
    "norm-looks-scaled",
    "overflow-not-skipped",
    "loss-sometimes-not-finite",
}
"""Warnings beside which no run is called healthy."""


def _doubt(run: Evidence, ids: set[str]) -> str:
    """Return why a log without a problem is not enough to call its run healthy; "" if it is enough."""
    loss, norm = run.loss, run.norm
    skipped, steps = run.skip_share or (math.nan, 0.0)
    numbers = [each for each in (*run.losses, norm, *run.scales) if each is not None]
    records = max(map(len, numbers), default=0)
    few_skips = run.counts_exactly and steps >= 20 and skipped <= 0.05 * steps
    guarded = bool(
        run.scales
        or run.counters
        or run.flags
        or (norm is not None and len(norm.finite) >= FEW)
        or any(_falls_clearly(each) for each in run.losses)
    )
    calm = not run.skips or few_skips or _goes_on(run)
    ends = [each for each in (loss, norm) if each is not None]
    off = (
        bool(run.kind("off"))
        and not run.scales
        and not any("fp16_enabled" in text and "True" in text for text in run.history.texts)
    )
    scale = run.scale
    stands = (
        norm is not None
        and len(norm.finite) >= 10
        and bool((norm.values[-8:] == norm.values[-1]).all())
    )
    constant = (
        loss is not None and len(loss.finite) >= 3 and bool((loss.finite == loss.finite[0]).all())
    )
    # Each doubt holds or not, and says in words why; the first that holds is the answer.
    doubts = (
        (off, "the program reports that fp16 is off, so there is no loss scale to check"),
        (records < FEW and not few_skips, f"it has only {records} record{'s' * (records != 1)}"),
        (not guarded, "it shows no loss scale, no skipped steps, and no gradient norm"),
        (any(bool(lost(each.values[-1:]).any()) for each in ends), "its last record is not finite"),
        (not calm, "it ends with skipped steps"),
        (steps >= 20 and skipped > steps / 4, "many steps of its second half were skipped"),
        (loss is not None and loss.values[-1] == 0, "the last loss is printed as 0"),
        (bool({"loss-flat", "loss-constant"} & ids) or constant, "the loss does not fall in it"),
        (not _steps_taken(run, few_skips=few_skips), "no line shows that an optimizer step was taken"),
        (_loss_is_higher(loss), "the loss is higher at its end than at its start"),
        (bool(DOUBTFUL & ids), "of the warning below"),
        (scale is not None and scale.values[-1] == 0, "the loss scale is printed as 0"),
        (stands, "the gradient norm stands still, as if no new one was computed"),
        (_falls_often(run.scale), "the loss scale falls between many of its records"),
        ("evaluation-not-finite" in ids and _evaluation_is_lost(run), "the evaluation loss is not finite"),
        ("scale-low" in ids, "the loss scale ends below 1"),
        ("scale-endless-growth" in ids, "the loss scale grows without an overflow"),
    )  # fmt: skip
    return next((words for holds, words in doubts if holds), "")


def _goes_on(run: Evidence) -> bool:
    """Return whether records follow the last skipped step, or few steps at the end of a longer log were skipped."""
    if any((each.values[-2:] > 0).all() for each in run.flags) or _scale_falls_at_end(run.scale):
        return False
    counters = run.counters if run.counts_exactly else []
    records = [each for each in (*run.losses, run.norm, *counters) if each is not None]
    records += [each.part(each.values == 0) for each in run.flags]
    after = run.skips[-1].line
    if any((each.lines > after).any() for each in records):
        return True
    longest = max(records, key=len, default=None)
    if longest is None or len(longest) < 8:
        return False
    return sum(skip.count for skip in run.skips if skip.line > longest.lines[-3]) <= 2


def _scale_falls_at_end(scale: Series | None) -> bool:
    """Return whether the last records show three halvings of a scale or more."""
    if scale is None or scale.name == MESSAGES or len(scale) < 2 or not is_halved(scale.values):
        return False
    return halvings(float(scale.values[-2]), float(scale.values[-1])) >= 2


def _steps_taken(run: Evidence, *, few_skips: bool) -> bool:
    """Return whether the numbers show that optimizer steps were taken."""
    if few_skips or any(falls(loss.finite) for loss in run.losses):
        return True
    norm, scale = run.norm, run.scale
    if (
        norm is not None
        and len(norm) >= 6
        and not lost(norm.values[-5:]).any()
        and run.loss is None
    ):
        return True
    return scale is not None and run.loss is None and bool((np.diff(scale.values) > 0).any())


def _falls_clearly(loss: Series) -> bool:
    """Return whether a loss alone shows training: it is finite, and it falls by half, or by a tenth in a long log."""
    if lost(loss.values).any():
        return False
    fall = falls(loss.values)
    return (len(loss) >= 5 and fall >= 0.5) or (len(loss) >= 20 and fall >= 0.1)


def _falls_often(scale: Series | None) -> bool:
    """Return whether a scale falls on more than an eighth of the later records, so that records hide more skips."""
    if scale is None or len(scale) < 10 or scale.name == MESSAGES:
        return False
    late = scale.values[len(scale) // 2 :]
    moves = np.diff(late)
    return is_halved(late) and int((moves > 0).sum()) >= 2 and float(np.mean(moves < 0)) > 1 / 8


def _evaluation_is_lost(run: Evidence) -> bool:
    return any(lost_at_end(series) for series in run.evaluations)


def _loss_is_higher(loss: Series | None) -> bool:
    if loss is None or not len(loss.finite) or loss.finite.min() <= 0:
        return False
    return bool(np.median(loss.finite[-3:]) > 1.2 * loss.finite[0])


def _state(run: Evidence) -> str:
    """Return what happened to the loss and the scale, in a sentence."""
    parts = []
    if run.loss is not None and len(run.loss.finite) > 1:
        first, last = number_text(run.loss.finite[0]), number_text(run.loss.finite[-1])
        parts.append(
            f"the {run.loss.name} went from {first} to {last} over {len(run.loss)} records"
        )
    if run.scale is not None:
        first, last = number_text(run.scale.values[0]), number_text(run.scale.values[-1])
        moved = bool((run.scale.values != run.scale.values[0]).any())
        parts.append(
            f"the loss scale went from {first} to {last}"
            if moved
            else f"the loss scale was {first} throughout"
        )
    if parts and (run.skips_at_least or run.counters or run.flags):
        skipped = run.skips_at_least
        parts.append(
            f"at least {skipped} step{'s were' if skipped != 1 else ' was'} skipped"
            if skipped
            else "no step was skipped"
        )
    if not parts:
        return ""
    text = ", and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]
    return f"{text[0].upper()}{text[1:]}."


def _looked_at(run: Evidence) -> list[str]:
    """Return each series that was looked at, in words."""
    series = [
        *run.losses[:3],
        *run.scales[:4],
        *([run.norm] if run.norm else []),
        *run.counters[:2],
        *run.flags[:1],
        *run.evaluations[:2],
    ]
    return [_summary(each) for each in series]


def _summary(series: Series) -> str:
    finite = series.finite
    text = f"{series.name}: {len(series)} record{'s' * (len(series) != 1)}"
    if len(finite):
        first, last = number_text(finite[0]), number_text(finite[-1])
        text += f", {first} to {last}" if first != last else f", {last}"
    if len(finite) > 2 and finite.min() < finite.max():
        text += f" (lowest {number_text(finite.min())}, highest {number_text(finite.max())})"
    missing = len(series) - len(finite)
    return text + (f"; {missing} not finite" if missing else "")


def _missing(run: Evidence) -> list[str]:
    """Return what a verdict needs and the log does not show."""
    wanted = {
        "the loss scale (print scaler.get_scale() beside the loss)": run.scales,
        "how many steps were skipped": run.counters or run.flags or run.kind("skip"),
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
    others = [finding for finding in explanation.findings if finding.severity != "problem"]
    for finding in others:
        lines.append(f"{finding.severity.capitalize()}: {finding.message}")
        if finding.severity == "warning" and finding.actions:
            lines.append(f"  Try: {finding.actions[0]}")
        lines += _support(finding) if why else []
    lines += [""] if others else []
    lines += [
        "Looked at:",
        *(f"  {each}" for each in explanation.looked_at or ["nothing with a known name"]),
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
    """Return the id, the level, and the lines of a finding."""
    if not finding.lines:
        return [f"  [{finding.id}, {finding.level}]"]
    shown = ", ".join(str(line) for line in finding.lines[:10])
    more = ", ..." if len(finding.lines) > 10 else ""
    word = "line" if len(finding.lines) == 1 else "lines"
    return [f"  [{finding.id}, {finding.level}; {word} {shown}{more}]"]


def _series_data(series: Series, most: int | None) -> dict[str, Any]:
    kept = (
        series
        if most is None or len(series) <= most
        else series.part(_extremes(series.values, most))
    )
    columns = {"line": kept.lines, "step": kept.steps, "value": kept.values}
    data = {name: column.tolist() for name, column in columns.items()}
    return {"name": series.name, "role": series.role, "rank": series.rank, **data}


def _extremes(values: Floats, most: int) -> npt.NDArray[np.int64]:
    """Return the rows of the first, the least, the largest, and the last number of each part of equally many."""
    size = -(-len(values) // (most // 4))
    padded = np.pad(values, (0, -len(values) % size), mode="edge").reshape(-1, size)
    starts = np.arange(len(padded)) * size
    least = starts + np.argmin(np.where(np.isnan(padded), np.inf, padded), axis=1)
    largest = starts + np.argmax(np.where(np.isnan(padded), -np.inf, padded), axis=1)
    rows = np.concatenate([starts, least, largest, starts + size - 1])
    return np.unique(np.minimum(rows, len(values) - 1))


def _setting(value: object) -> object:
    return (
        value
        if isinstance(value, str | int | float | bool | None)
        else json.dumps(value, default=str)
    )


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
