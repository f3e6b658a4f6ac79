"""The report of a run: one page of HTML with its diagnosis in words, its charts, and its skipped
steps.
"""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from ampsim.runs.explain_log import Explanation
from ampsim.runs.findings.finding import Finding
from ampsim.runs.report.page import assemble, asset, shown

MOST_FINDINGS = 6
"""Problems that are open; more unfold."""
MOST_POINTS = 16_384
"""Numbers of a series that a page holds: of more, the least and the largest of each part."""
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
        asset("report.html"),
        "<details><summary>Run settings</summary><ul>",
        *(
            f"<li>{shown(f'{name}: {value}')}</li>"
            for name, value in data["settings"].items()
        ),
        "</ul></details>",
    ]
    names = ("series", "findings", "nonfinite", "exponents")
    drawn = {
        "skips": data["skips"][:MOST_SKIPS],
        **{name: data[name] for name in names},
    }
    uplot = f"/*! {asset('uPlot.LICENSE.txt')} */\n{asset('uPlot.iife.min.js')}"
    scripts = [asset(script) for script in ("charts.js", "heat.js", "report.js")]
    return assemble(
        f"{name}: loss scale report", [uplot, *scripts], drawn, "\n".join(body)
    )


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
    yield from (
        f"<li>{shown(text)}</li>" for text in [*data["looked_at"], *data["notes"]]
    )
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
