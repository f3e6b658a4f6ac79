"""What the kit found, checks by scalers or checks by loops: Markdown, JSON, or JUnit's XML."""

import json
from collections.abc import Iterable, Sequence
from importlib import metadata
from xml.etree import ElementTree as ET

from ampsim.core.output import CONTROLS
from ampsim.testing.check import Check, Outcome, Result, by_cause, findings

# outcome -> its sign and colour in a table, and what a summary calls it
_SHOWN: dict[Outcome, tuple[str, str, str]] = {
    "passed": ("✓", "green", "passed"),
    "failed": ("✗", "bold red", "failed"),
    "error": ("?", "bold red", "error"),
    "xfailed": ("x", "yellow", "xfailed"),
    "xpassed": ("X", "bold red", "xpassed"),
    "skipped": ("–", "dim", "skipped"),
}
SIGNS = {outcome: sign for outcome, (sign, _, _) in _SHOWN.items()}
COLOURS = {outcome: colour for outcome, (_, colour, _) in _SHOWN.items()}
_JUNIT: dict[
    Outcome, tuple[str, str]
] = {  # outcome -> JUnit's element and its type; one that passed has none
    "failed": ("failure", "failed check"),
    "xpassed": ("failure", "xpassed"),
    "error": ("error", "error"),
    "xfailed": ("skipped", "pytest.xfail"),
    "skipped": ("skipped", "skipped"),
}


class Report:
    """Results in a table: a row per check and a column per scaler."""

    def __init__(self, results: Iterable[Result]) -> None:
        self.results = list(results)
        self.scalers = [*dict.fromkeys(result.target for result in self.results)]
        self._by_place = {(result.check.name, result.target): result for result in self.results}

    @property
    def findings(self) -> list[Result]:
        """What someone should look at."""
        return findings(self.results)

    @property
    def refused(self) -> list[Result]:
        """What could not be judged."""
        return [result for result in self.results if result.outcome == "error"]

    def at_length(self) -> list[tuple[Result, str]]:
        """Return what is told at length, with its text: findings, those of one cause as one, and what was refused."""
        return by_cause([*self.findings, *self.refused])

    def rows(self) -> list[tuple[Check, list[Result | None]]]:
        """Return each check with its results, one for each of ``scalers``; None where it was not run."""
        checks = {result.check.name: result.check for result in self.results}.values()
        ordered = sorted(checks, key=lambda check: check.level)
        return [
            (check, [self._by_place.get((check.name, name)) for name in self.scalers])
            for check in ordered
        ]

    def summary(self) -> list[str]:
        """Count the outcomes, in one sentence per scaler."""
        lines = []
        for name in self.scalers:
            outcomes = [result.outcome for result in self.results if result.target == name]
            counts = [(outcomes.count(outcome), word) for outcome, (_, _, word) in _SHOWN.items()]
            parts = [f"{count} {word}" for count, word in counts if count]
            lines.append(f"{name}: {', '.join(parts)} of {len(outcomes)} checks")
        return lines

    def unasked(self) -> list[str]:
        """Return why checks of loops were skipped, one sentence each."""
        results = [
            each
            for each in self.results
            if each.outcome == "skipped" and each.check.group == "loop"
        ]
        return [f"{each.target}: {each.check.name} skipped: {each.text}" for each in results]

    def to_markdown(self) -> str:
        """Write a table, then every finding."""
        lines = [_row(["level", "check", *self.scalers]), _row(["---"] * (2 + len(self.scalers)))]
        for check, results in self.rows():
            lines.append(_row([check.group.split()[0], f"`{check.name}`", *map(sign, results)]))
        for result, text in self.at_length():
            lines += ["", f"### {result.target}: `{result.check.name}`", "", "```", text, "```"]
        return "\n".join(
            [*self.summary(), *[f"- {line}" for line in self.unasked()], "", *lines, ""]
        )

    def to_json(self) -> str:
        """Write the versions of all packages and one record per result."""
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
        return (
            json.dumps(
                {"versions": versions, "findings": len(self.findings), "results": records}, indent=1
            )
            + "\n"
        )

    def to_xml(self) -> str:
        """Write what a CI server reads as JUnit's: a suite per scaler or loop, a case per check."""
        root = ET.Element("testsuites", name="ampsim check")
        for name in self.scalers:
            results = [result for result in self.results if result.target == name]
            elements = [_JUNIT[result.outcome][0] for result in results if result.outcome in _JUNIT]
            counts = {"tests": len(results), "failures": elements.count("failure"),
                      "errors": elements.count("error"), "skipped": elements.count("skipped")}  # fmt: skip
            suite = ET.SubElement(
                root, "testsuite", {"name": name, **{key: str(n) for key, n in counts.items()}}
            )
            for result in results:
                case = ET.SubElement(
                    suite,
                    "testcase",
                    classname=f"{name}.{result.check.group}",
                    name=result.check.name,
                )
                if found := _JUNIT.get(result.outcome):
                    element, kind = found
                    text = result.text.translate(CONTROLS)
                    ET.SubElement(
                        case, element, type=kind, message=text.partition("\n")[0]
                    ).text = text
        ET.indent(root)
        return ET.tostring(root, "unicode", xml_declaration=True) + "\n"


FORMATS = {"md": Report.to_markdown, "json": Report.to_json, "xml": Report.to_xml}


def sign(result: Result | None) -> str:
    """Return what a table shows for a result; '' for none."""
    return "" if result is None else SIGNS[result.outcome]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
