"""Output formats of a run: text, JSON, and GitHub annotations; and the page of a rule."""

import json
from dataclasses import asdict

from ampsim.lint.engine import RULES, Rule, lint
from ampsim.lint.run import Run

SEVERITIES = ("error", "warning", "note")
_DATA = {ord("%"): "%25", ord("\r"): "%0D", ord("\n"): "%0A"}
_PLACE = _DATA | {ord(":"): "%3A", ord(","): "%2C"}


def as_text(run: Run) -> str:
    """Return one line per finding, and a last line that says what was read."""
    lines = [*map(str, run.findings)]
    if run.findings:
        first = min(run.findings, key=lambda each: SEVERITIES.index(each.severity))
        lines.append(
            f"For the reason and the fix, run: ampsim lint --explain {first.code}"
        )
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
{finding}
```

## Use instead

{rule.fix}

```python
{rule.right}```

## Known limits

{rule.limits}

## See also

- To ignore or select rules: [docs/lint/README.md](README.md#configuration)
"""
CHECK = """\
- `ampsim check-loop` runs a script: [docs/how-to/script.md](../how-to/script.md). This loop fails `{rule.check}`.
"""
REPORT = "- A public report: <{rule.thread}>\n"


def explained(rule: Rule) -> str:
    """Return the page of a rule, as Markdown."""
    finding = lint(rule.wrong, "train.py", [rule.code])[0]
    page = PAGE.format(rule=rule, finding=finding)
    if rule.check:
        page += CHECK.format(rule=rule)
    if rule.thread:
        page += REPORT.format(rule=rule)
    return page


FORMATS = {"text": as_text, "json": as_json, "github": as_github}
