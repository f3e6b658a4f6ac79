"""The report of a run: one page of HTML with its diagnosis in words, its charts and its skips."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import PurePath

import numpy as np

from ampsim.diagnose.explain import HEALTHY, facts
from ampsim.diagnose.exponents import Exponents, exponents
from ampsim.diagnose.findings import findings
from ampsim.diagnose.history import History
from ampsim.diagnose.infer import ledger
from ampsim.diagnose.looks import Finding
from ampsim.diagnose.page.page import assemble, asset, packed
from ampsim.diagnose.what_if import Other, other_rules
from ampsim.diagnose.words import counted

NAMES = 6
"""Parameters that the ledger names for a skip; of more it says how many."""
FINDINGS = 6
"""Findings that are open to the eye; the others unfold."""
LAYERS = 200
"""Rows of the table of layers."""


def report(history: History) -> str:
    """Return the page of a run as HTML; it needs no network and no other file."""
    found, layers = findings(history), exponents(history)
    name = PurePath(history.source).name or history.source
    body = [
        f"<style>{asset('report.css')}</style>",
        f"<header><h1>{escape(name)}</h1>",
        f'<p class="faint">What the loss scale did, steps {history.step[0]:,} to {history.step[-1]:,}, '
        f"from {escape(history.program)}</p></header>",
        *_diagnosis(history, found),
        asset("report.html").replace("<!--layers-->", "\n".join(_layers(layers))),
        *_others(history),
        *_run(history),
    ]
    data = {
        "step": packed(history.step, "float64"),
        **{column: packed(getattr(history, column)) for column in ("scale", "skipped", "norm", "loss")},
        "ledger": _ledger(history),
        "findings": [[finding.kind, finding.step] for finding in found],
        "exponents": layers and layers.to_json(),
    }
    scripts = [asset(script) for script in ("charts.js", "heat.js", "report.js")]
    return assemble(f"{name}: what the loss scale did", scripts, data, "\n".join(body))


def _diagnosis(history: History, found: list[Finding]) -> Iterator[str]:
    yield '<section id="diagnosis" aria-label="Diagnosis">'
    if not found:
        yield f'<article class="healthy"><h2>Healthy</h2><p>{HEALTHY}</p></article>'
    yield from map(_article, found[:FINDINGS])
    if len(found) > FINDINGS:
        yield f"<details><summary>{counted(len(found) - FINDINGS, 'more finding')}</summary>"
        yield from map(_article, found[FINDINGS:])
        yield "</details>"
    yield "<ul class=facts>"
    yield from (f"<li>{escape(fact)}</li>" for fact in [*facts(history), *history.notes])
    yield "</ul></section>"


def _article(finding: Finding) -> str:
    return (
        f'<article class="finding"><h2>{escape(finding.kind.capitalize())}, '
        f'<button class="go" data-step="{finding.step}">step {finding.step:,}</button></h2>'
        f"<p>{_prose(finding.what)}</p><p><strong>Try:</strong> {_prose(finding.cure)}</p></article>"
    )


def _ledger(history: History) -> dict[str, object]:
    """Return the skips as the page takes them.

    Returns:
        ``rows``: [first step, last step, skips, scale or None]; ``inferred``: whether the skips were; ``bad``: step ->
        [[parameter, what it has], ...] of the first few, and how many more; ``bad`` names each parameter by its index
        in ``names``.
    """
    rows, inferred = ledger(history)
    index: dict[str, int] = {}
    bad = {
        step: [[[index.setdefault(name, len(index)), what] for name, what in list(names.items())[:NAMES]], len(names)]
        for step, names in history.bad.items()
    }
    finite = [[first, last, skips, scale if math.isfinite(scale) else None] for first, last, skips, scale in rows]
    return {"rows": finite, "inferred": inferred, "bad": bad, "names": list(index)}


def _layers(layers: Exponents | None) -> Iterator[str]:
    """Yield the table of layers, those that lose most first."""
    if layers is None or np.isnan(layers.lost).all():
        return
    shares = [(name, row[~np.isnan(row)]) for name, row in zip(layers.layers, layers.lost, strict=True)]
    rows = [(name, float(np.median(row)), float(row.max())) for name, row in shares if len(row)]
    rows.sort(key=lambda row: -row[1])
    yield "<details><summary>Share lost by layer, as a table</summary>"
    yield from _table(
        ("layer", "median share lost", "largest"),
        ((name, f"{median:.2%}", f"{largest:.2%}") for name, median, largest in rows[:LAYERS]),
    )
    yield "</details>"


def _others(history: History) -> Iterator[str]:
    others = other_rules(history)
    if not others:
        return
    own = Other("this run", int(history.skipped.sum()), float(history.scale[-1]))
    yield "<h2>What other rules would have done</h2>"
    yield (
        "<p>Replayed on what this record tells of the gradients: a step is taken to overflow where its neighbours did, "
        "and the training is taken to go on the same.</p>"
    )
    yield from _table(("rule", "outcome"), ((each.name, each.outcome) for each in [own, *others]), numbers=False)


def _run(history: History) -> Iterator[str]:
    """Yield what the file says of the run itself."""
    if history.settings:
        yield "<details><summary>The run</summary>"
        rows = ((key, _text(value)) for key, value in history.settings.items())
        yield from _table(("setting", "value"), rows, numbers=False)
        yield "</details>"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], numbers: bool = True) -> Iterator[str]:
    """Yield a table, whose first column is text and whose others are numbers, or text too."""

    def cells(row: Iterable[str], tag: str) -> str:
        first, *rest = (escape(cell) for cell in row)
        kind = ' class="number"' if numbers else ""
        return f"<tr><{tag}>{first}</{tag}>" + "".join(f"<{tag}{kind}>{cell}</{tag}>" for cell in rest) + "</tr>"

    yield f'<div class="wide"><table><thead>{cells(head, "th")}</thead><tbody>'
    yield from (cells(row, "td") for row in rows)
    yield "</tbody></table></div>"


def _prose(text: str) -> str:
    """Return text as HTML; what stands between backticks is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
