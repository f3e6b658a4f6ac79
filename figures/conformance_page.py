"""The page `conformance.html`: outcomes of checks by adapter, with a minimal overflow sequence per
cell.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ampsim.runs.report.page import assemble
from figures.derived_numbers import adapters
from figures.results import Result

HERE = Path(__file__).parent
TITLE = "Conformance table of loss scalers"
KEPT = (
    "arm",
    "class",
    "requirement",
    "target",
    "source",
    "patched",
    "dialect",
    "live",
    "version",
    "pinned",
    "date",
    "commit",
    "drift",
    "checks",
)


def parts(run: Result) -> tuple[Mapping[str, str], Sequence[Mapping[str, Any]]]:
    """Return the checks with their sentences, and the record of each adapter."""
    checks: Mapping[str, str] = run.arm("checks").first["sentences"]
    return checks, adapters(run)


def page(run: Result) -> str:
    """Return the page."""
    checks, rows = parts(run)
    first = run.arm("checks").first
    promises = {"promises": first["promises"], "ends": first["ends"]}
    data = {
        "checks": checks,
        **promises,
        "adapters": [
            {name: plain(in_words(adapter).get(name)) for name in KEPT}
            for adapter in rows
        ],
    }
    body = f"<style>{_text('conformance_page.css')}</style>\n{_text('conformance_page.html')}"
    return assemble(TITLE, [_text("conformance_page.js")], data, body)


def in_words(adapter: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an adapter's record; the first sequence that differs from its dialect is in words."""
    drift = adapter.get("drift")
    if not drift or not drift.get("first"):
        return adapter
    settings, history, said = re.fullmatch(
        r"\{(.*)\} (\S+): (.*)", drift["first"]
    ).groups()  # type: ignore[union-attr]
    settings = re.sub(r"'(\w+)': ", r"\1 = ", settings)
    return {
        **adapter,
        "drift": {
            **drift,
            "first": f"with {settings}, after {history} (x is an overflow): {said}",
        },
    }


def plain(value: Any) -> Any:
    """Return what JSON can hold: inf and NaN as text."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return (
        str(value) if isinstance(value, float) and not math.isfinite(value) else value
    )


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
