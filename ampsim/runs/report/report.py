"""The report of a run: one page of HTML with its diagnosis in words, its charts, and its skipped steps."""

from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any

from ampsim.runs.explain_log import Explanation
from ampsim.runs.findings.finding import Finding
from ampsim.runs.report.page import assemble, asset, shown

MOST_FINDINGS = 6
"""Problems that are open; more unfold."""
MOST_POINTS = 16_384
"""Numbers of a series that a page holds: of more, the least and the largest of each part."""
MOST_LAYERS = 200
MOST_SKIPS = 5_000


def report(explanation: Explanation) -> str:
    """Return the page of a run as HTML; it needs no network and no other file.

    Args:
        explanation: The diagnosis of the run.

    Returns:
        The page. It draws the data of `Explanation.to_json`, and reads nothing from the log itself.
    """
    data = explanation.to_json(MOST_POINTS)
    name = PurePath(data["source"]).name or data["source"]
    count = explanation.history.line_count
    body = [
        f"<style>{asset('uPlot.min.css')}\n{asset('report.css')}</style>",
        f'<header><h1>{shown(name)}</h1><p class="faint">Loss scale report, {count:,} lines</p></header>',
        *_diagnosis(explanation, data),
        asset("report.html").replace("<!--layers-->", _layers(data["exponents"])),
        _table(
            "Run settings",
            ("setting", "value"),
            ((name, str(value)) for name, value in data["settings"].items()),
        ),
    ]
    drawn = {
        "series": data["series"],
        "skips": data["skips"][:MOST_SKIPS],
        "findings": data["findings"],
        "nonfinite": data["nonfinite"],
        "exponents": data["exponents"],
    }
    uplot = f"/*! {asset('uPlot.LICENSE.txt')} */\n{asset('uPlot.iife.min.js')}"
    scripts = [asset(script) for script in ("charts.js", "heat.js", "report.js")]
    return assemble(f"{name}: loss scale report", [uplot, *scripts], drawn, "\n".join(body))


def _diagnosis(explanation: Explanation, data: dict[str, Any]) -> Iterator[str]:
    problems = explanation.problems
    yield '<section id="diagnosis" aria-label="Diagnosis">'
    if not problems:
        kind = "healthy" if explanation.verdict == "no problem found" else "unknown"
        yield f'<article class="{kind}"><h2>{shown(explanation.verdict.capitalize())}</h2>'
        yield f"<p>{shown(data['summary'])}</p></article>"
    yield from map(_article, problems[:MOST_FINDINGS])
    if len(problems) > MOST_FINDINGS:
        yield f"<details><summary>More problems: {len(problems) - MOST_FINDINGS}</summary>"
        yield from map(_article, problems[MOST_FINDINGS:])
        yield "</details>"
    yield "<ul class=facts>"
    for finding in explanation.findings[len(problems) :]:
        action = (
            f" <strong>Try:</strong> {shown(finding.actions[0])}"
            if finding.severity == "warning"
            else ""
        )
        yield f"<li>{shown(finding.message)}{action}</li>"
    yield from (f"<li>{shown(text)}</li>" for text in [*data["looked_at"], *data["notes"]])
    if data["missing"]:
        yield f"<li>The log does not show {shown('; '.join(data['missing']))}.</li>"
    yield "</ul></section>"


def _article(finding: Finding) -> str:
    step = f' data-line="{finding.lines[0] if finding.lines else 0}" data-step="{finding.step:.0f}"'
    actions = "".join(f"<li>{shown(action)}</li>" for action in finding.actions)
    return (
        f'<article class="finding"><h2>{shown(finding.id.replace("-", " ").capitalize())}, <button class="go"{step}>'
        f"{shown(finding.place)}</button></h2><p>{shown(finding.message)}</p>"
        f"<p><strong>Likely cause:</strong> {shown(finding.cause)}</p><ol>{actions}</ol></article>"
    )


def _layers(exponents: dict[str, Any] | None) -> str:
    """Return the table of layers, those that underflow most first."""
    shares = exponents["underflow"] if exponents else {}
    rows = sorted(
        ((median, largest, name) for name, (median, largest) in shares.items()), reverse=True
    )
    cells = [
        (name, f"{median:.2%}", f"{largest:.2%}") for median, largest, name in rows[:MOST_LAYERS]
    ]
    return _table(
        "Underflow by layer, as a table", ("layer", "median underflow", "largest"), cells, "number"
    )


def _table(summary: str, head: Iterable[str], rows: Iterable[Iterable[str]], kind: str = "") -> str:
    """Return a table that unfolds, "" if it has no rows; `kind` is the class of the columns after the first."""
    body = "\n".join(_row(row, "td", kind) for row in rows)
    table = f'<div class="wide"><table><thead>{_row(head, "th", kind)}</thead><tbody>{body}</tbody></table></div>'
    return body and f"<details><summary>{summary}</summary>{table}</details>"


def _row(cells: Iterable[str], tag: str, kind: str) -> str:
    first, *rest = (shown(cell) for cell in cells)
    others = "".join(f'<{tag} class="{kind}">{cell}</{tag}>' for cell in rest)
    return f"<tr><{tag}>{first}</{tag}>{others}</tr>"
