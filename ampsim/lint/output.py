"""Output formats of a run: text, JSON, and GitHub annotations; and the page of a rule."""

import json
from dataclasses import asdict, dataclass, field

from ampsim.lint.engine import RULES, Finding, Rule, lint

_DATA = {ord("%"): "%25", ord("\r"): "%0D", ord("\n"): "%0A"}
_PLACE = _DATA | {ord(":"): "%3A", ord(","): "%2C"}


@dataclass
class Run:
    """What a run of the lint read and found.

    Attributes:
        findings: the findings of all files.
        errors: why a file could not be read, by path.
        loops: the number of training loops by path, also where it is 0.
    """

    findings: list[Finding] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    loops: dict[str, int] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """The exit status: 2 for an unreadable file, 1 for an error or a warning, or else 0."""
        failed = any(finding.severity != "note" for finding in self.findings)
        return 2 if self.errors else int(failed)

    @property
    def summary(self) -> str:
        """What was found and read, in one line: a file without a loop is not a clean file."""
        total = sum(self.loops.values())
        without = [*self.loops.values()].count(0)
        found = _counted(len(self.findings), "finding")
        read = f"{_counted(len(self.loops), 'file')} read, {_counted(total, 'training loop')}"
        return f"{found}; {read}, {_counted(without, 'file')} without a loop"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def as_text(run: Run) -> str:
    """Return one line per finding, and a last line that says what was read."""
    lines = [
        f"{each.path}:{each.line}:{each.column}: {each.code} {each.severity}: {each.message}"
        for each in run.findings
    ]
    if run.findings:
        code = run.findings[0].code
        lines.append(f"For the reason and the fix, run: ampsim lint --explain {code}")
    return "\n".join([*lines, run.summary])


def as_json(run: Run) -> str:
    """Return an object with the findings, their rules, the loops read, and the errors."""
    findings = []
    for each in run.findings:
        rule = RULES[each.code]
        texts = {"rule": rule.name, "check": rule.check, "thread": rule.thread}
        findings.append(asdict(each) | texts | {"reason": f"{rule.why} {rule.fix}"})
    return json.dumps(
        {"findings": findings, "errors": run.errors, "loops": run.loops}, indent=2
    )


def as_github(run: Run) -> str:
    """Return a GitHub workflow annotation per finding and per unreadable file."""
    lines = []
    for each in run.findings:
        kind = each.severity.replace("note", "notice")
        place = f"file={each.path.translate(_PLACE)},line={each.line},col={each.column}"
        lines.append(
            f"::{kind} {place},title={each.code}::{each.message.translate(_DATA)}"
        )
    for path, text in run.errors.items():
        lines.append(f"::error file={path.translate(_PLACE)}::{text.translate(_DATA)}")
    return "\n".join(lines)


PAGE = """\
# {rule.code}: {rule.name}

Severity: {rule.severity}

## What it does

{rule.what}

## Why is this bad?

{rule.why}

## Example

```python
{rule.wrong}```

The finding:

```text
train.py:{finding.line}:{finding.column}: {rule.code} {rule.severity}: {finding.message}
```

## Use instead

{rule.fix}

```python
{rule.right}```

## Known limits

{rule.limits}

## See also

- [Ignore or select rules](README.md#configuration)
"""
CHECK = """\
- [`check_loop`](../how-to/loop.md) runs a loop. This loop fails the check `{rule.check}`.
"""
REPORT = "- A public report: <{rule.thread}>\n"


def explained(rule: Rule) -> str:
    """Return the page of a rule, as Markdown."""
    page = PAGE.format(rule=rule, finding=lint(rule.wrong, codes=[rule.code])[0])
    if rule.check:
        page += CHECK.format(rule=rule)
    if rule.thread:
        page += REPORT.format(rule=rule)
    return page


FORMATS = {"text": as_text, "json": as_json, "github": as_github}
