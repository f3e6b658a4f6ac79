"""Reports of check results, one column per scaler or loop, as Markdown or JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import metadata

from ampsim.testing.check import Check, Outcome, Result, by_cause, findings

SIGNS: dict[Outcome, str] = {  # in the order of a summary
    "passed": "✓",
    "failed": "✗",
    "error": "?",
    "xfailed": "x",
    "xpassed": "X",
    "skipped": "–",
}
COLOURS: dict[Outcome, str] = {
    "passed": "green",
    "failed": "bold red",
    "error": "bold red",
    "xfailed": "yellow",
    "xpassed": "bold red",
    "skipped": "dim",
}


class Report:
    """A table of results with one row per check and one column per scaler."""

    def __init__(self, results: Iterable[Result]) -> None:
        self.results = list(results)
        self.scalers = [*dict.fromkeys(result.target for result in self.results)]

    @property
    def findings(self) -> list[Result]:
        """The results that need attention: failed and xpassed checks."""
        return findings(self.results)

    @property
    def errors(self) -> list[Result]:
        """The checks that could not run."""
        return [result for result in self.results if result.outcome == "error"]

    def at_length(self) -> list[tuple[Result, str]]:
        """Return the results to show in full, with their texts: findings, merged by cause, and
        errors.
        """
        return by_cause([*self.findings, *self.errors])

    def rows(self) -> list[tuple[Check, list[Result | None]]]:
        """Return each check with one result per scaler; None if the check did not run."""
        cells: dict[str, dict[str, Result]] = {}
        for result in sorted(self.results, key=lambda result: result.check.level):
            cells.setdefault(result.check.name, {})[result.target] = result
        rows = []
        for by_target in cells.values():
            check = next(iter(by_target.values())).check
            rows.append((check, [by_target.get(name) for name in self.scalers]))
        return rows

    def summary(self) -> list[str]:
        """Return one line per scaler with the number of each outcome."""
        lines = []
        for name in self.scalers:
            results = [result for result in self.results if result.target == name]
            counts = Counter(result.outcome for result in results)
            parts = [f"{counts[each]} {each}" for each in SIGNS if counts[each]]
            lines.append(f"{name}: {', '.join(parts)} of {len(results)} checks")
        return lines

    def reasons(self, outcome: Outcome) -> list[str]:
        """Return one line per target and reason of checks with this outcome: skipped or xfailed."""
        found: dict[tuple[str, str], list[str]] = {}
        for each in self.results:
            if each.outcome == outcome:
                found.setdefault((each.target, each.text), []).append(each.check.name)
        return [
            f"{target}: {', '.join(names)} {outcome}: {reason}"
            for (target, reason), names in found.items()
        ]

    def to_markdown(self) -> str:
        """Return the table and each finding as Markdown."""
        lines = [_row(["level", "check", *self.scalers])]
        lines.append(_row(["---"] * (2 + len(self.scalers))))
        for check, results in self.rows():
            signs = [sign(result) for result in results]
            lines.append(_row([check.label, f"`{check.name}`", *signs]))
        for result, text in self.at_length():
            head = f"### {result.target}: `{result.check.name}`"
            lines += ["", head, "", "```", text, "```"]
        reasons = [*self.reasons("skipped"), *self.reasons("xfailed")]
        listed = [f"- {line}" for line in reasons]
        return "\n".join([*self.summary(), *listed, "", *lines, ""])

    def to_json(self) -> str:
        """Return the package versions and one record per result as JSON."""
        versions = {name: _version(name) for name in ("ampsim", "torch", "hypothesis")}
        records = [
            {
                "scaler": result.target,
                "check": result.check.name,
                "level": result.check.level,
                "outcome": result.outcome,
                "property": result.check.statement,
                "issue": result.check.issue,
                "text": result.text,
            }
            for result in self.results
        ]
        report = {
            "versions": versions,
            "findings": len(self.findings),
            "results": records,
        }
        return json.dumps(report, indent=1) + "\n"


FORMATS = {"md": Report.to_markdown, "json": Report.to_json}


def sign(result: Result | None) -> str:
    """Return the sign of a result in a table; "" for None."""
    return "" if result is None else SIGNS[result.outcome]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
