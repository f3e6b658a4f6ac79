"""The report of a run: one page of HTML with its diagnosis in words, its charts and its skips."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import PurePath

import numpy as np

from ampsim.diagnose.evidence import Evidence
from ampsim.diagnose.explain import Explanation, explain
from ampsim.diagnose.exponents import Exponents, exponents
from ampsim.diagnose.history import History
from ampsim.diagnose.page.page import assemble, asset, packed
from ampsim.diagnose.statements import Statement, where
from ampsim.diagnose.wording import counted

NAMES = 6  # parameters that the ledger names for a skip; of more it says how many
FINDINGS = 6  # findings that are open to the eye; the others unfold
LAYERS = 200  # rows of the table of layers


def report(history: History) -> str:
    """Return the page of a run as HTML; it needs no network and no other file."""
    explanation, layers = explain(history), exponents(history)
    wrong, drawn, steps = explanation.wrong, history.last, history.step
    values = {key: value if isinstance(value, str) else json.dumps(value, default=str)
              for key, value in history.settings.items()}  # fmt: skip
    name = PurePath(history.source).name or history.source
    body = [
        f"<style>{asset('uPlot.min.css')}\n{asset('report.css')}</style>",
        f"<header><h1>{escape(name)}</h1>",
        f'<p class="faint">Loss scale report, {where(steps.min(), steps.max(), history.unit)}</p></header>',
        *_diagnosis(explanation),
        asset("report.html").replace("<!--layers-->", _layers(layers)),
        _table("Run settings", ("setting", "value"), values.items()),
    ]
    data = {
        "step": packed(history.step[drawn], "float64"),
        **{column: packed(getattr(history, column)[drawn]) for column in ("scale", "norm", "loss")},
        "skipped": packed(np.fmax(history.skipped, history.told)[drawn]),
        "ledger": _ledger(history),
        "findings": [[each.heading, each.step] for each in wrong],
        "exponents": layers and layers.to_json(),
    }
    uplot = f"/*! {asset('uPlot.LICENSE.txt')} */\n{asset('uPlot.iife.min.js')}"
    scripts = [asset(script) for script in ("charts.js", "heat.js", "report.js")]
    return assemble(f"{name}: loss scale report", [uplot, *scripts], data, "\n".join(body))


def _diagnosis(explanation: Explanation) -> Iterator[str]:
    wrong = explanation.wrong
    yield '<section id="diagnosis" aria-label="Diagnosis">'
    if not wrong:
        kind, head = (
            ("healthy", "No problem found")
            if explanation.verdict == "healthy"
            else ("unknown", "Too little to tell")
        )
        yield f'<article class="{kind}"><h2>{head}</h2><p>{escape(explanation.why)}</p></article>'
    else:
        yield f"<p>{escape(explanation.why)}</p>"
    yield from map(_article, wrong[:FINDINGS])
    if len(wrong) > FINDINGS:
        yield f"<details><summary>{counted(len(wrong) - FINDINGS, 'more finding')}</summary>"
        yield from map(_article, wrong[FINDINGS:])
        yield "</details>"
    yield "<ul class=facts>"
    for each in explanation.statements:
        if each.verdict != "wrong":
            fix = f" <strong>Fix:</strong> {_prose(each.fix)}" if each.fix else ""
            yield f"<li>{_prose(each.what)}{fix}</li>"
    yield from (f"<li>{escape(note)}</li>" for note in explanation.notes)
    yield "</ul></section>"


def _article(finding: Statement) -> str:
    return (
        f'<article class="finding"><h2>{escape(finding.heading.capitalize())}, <button class="go" '
        f'data-step="{finding.step}">{where(finding.first, finding.first, finding.unit)}</button></h2>'
        f"<p>{_prose(finding.what)}</p><p><strong>Fix:</strong> {_prose(finding.fix)}</p></article>"
    )


def skip_rows(history: History) -> list[tuple[float, float, int, float | None]]:
    """Return the skips whose steps are known: the first that they can be of, the last, how many, and at which scale.

    A sentence lies between the numbered lines around it, a count between its own and the one before.
    """
    run, steps = Evidence(**vars(history)), history.step
    told = run.told if (run.told > 0).any() else run.counts
    shown = np.flatnonzero(~np.isnan(told) & (run.sentence | run.numbered))
    pairs = (
        np.stack([np.append(-1, shown[:-1]), shown])[:, told[shown] >= 1]
        if len(shown)
        else np.empty((2, 0), int)
    )
    rows = []
    for before, at in pairs.T.tolist():
        first, last = run.bounds[:, at]
        if not (run.sentence[at] or run.flags):
            known = before >= 0 and run.part[before] == run.part[at]
            first, last = steps[before] + 1 if known else -math.inf, steps[at]
        if math.isfinite(first) and first <= last < math.inf:
            scale = (
                float(history.scale[at]) if run.flags or run.sentence[at] else math.nan
            )  # others' comes after
            rows.append(
                (float(first), float(last), int(told[at]), scale if math.isfinite(scale) else None)
            )
    return rows


def _ledger(history: History) -> dict[str, object]:
    """Return the skips as the page takes them.

    Returns:
        ``rows``: [first step, last step, skips, scale or None] of what counts and sentences tell; ``bad``: step ->
        [[parameter, what it has], ...] of the first few, and how many there are; ``bad`` names each parameter by its
        index in ``names``.
    """
    index: dict[str, int] = {}
    bad = {
        step: [
            [
                [index.setdefault(name, len(index)), what]
                for name, what in list(names.items())[:NAMES]
            ],
            len(names),
        ]
        for step, names in history.bad.items()
    }
    return {"rows": skip_rows(history), "bad": bad, "names": list(index)}


def _layers(layers: Exponents | None) -> str:
    """Return the table of layers, those that lose most first."""
    if layers is None:
        return ""
    shares = [
        (name, row[~np.isnan(row)]) for name, row in zip(layers.layers, layers.lost, strict=True)
    ]
    rows = sorted(
        ((float(np.median(row)), float(row.max()), name) for name, row in shares if len(row)),
        reverse=True,
    )
    cells = [(name, f"{median:.2%}", f"{largest:.2%}") for median, largest, name in rows[:LAYERS]]
    return _table(
        "Underflow by layer, as a table",
        ("layer", "median underflow", "largest"),
        cells,
        "number",
    )


def _table(summary: str, head: Iterable[str], rows: Iterable[Iterable[str]], kind: str = "") -> str:
    """Return a table that unfolds, nothing if it has no rows; `kind`: what the columns after the first are."""

    def cells(row: Iterable[str], tag: str) -> str:
        first, *rest = (escape(cell) for cell in row)
        return (
            f"<tr><{tag}>{first}</{tag}>"
            + "".join(f'<{tag} class="{kind}">{cell}</{tag}>' for cell in rest)
            + "</tr>"
        )

    body = "\n".join(cells(row, "td") for row in rows)
    table = f'<div class="wide"><table><thead>{cells(head, "th")}</thead><tbody>{body}</tbody></table></div>'
    return body and f"<details><summary>{summary}</summary>{table}</details>"


def _prose(text: str) -> str:
    """Return text as HTML; what stands between backticks is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
