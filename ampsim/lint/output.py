"""Output formats of findings and rules: text, JSON, and GitHub annotations."""

import json
from collections.abc import Mapping, Sequence

from ampsim.lint.engine import RULES, Finding, Rule, lint


def as_text(found: Sequence[Finding], errors: Mapping[str, str]) -> str:
    """Return one line per finding, and a last line with the number of findings."""
    lines = [f"{each.path}:{each.line}:{each.column}: {each.code} {each.message}" for each in found]
    if found:
        count = f"{len(found)} finding{'s' * (len(found) > 1)}"
        lines.append(
            f"{count}; for the reason and the fix, run: ampsim lint --explain {found[0].code}"
        )
    return "\n".join(lines)


def as_json(found: Sequence[Finding], errors: Mapping[str, str]) -> str:
    """Return an object with the findings, the texts of their rules, and the unreadable files."""
    texts = {
        code: {
            "rule": rule.name,
            "check": rule.check,
            "reason": f"{rule.why} {rule.fix}",
            "thread": rule.thread,
        }
        for code, rule in RULES.items()
    }
    return json.dumps(
        {"findings": [vars(each) | texts[each.code] for each in found], "errors": dict(errors)},
        indent=2,
    )


def as_github(found: Sequence[Finding], errors: Mapping[str, str]) -> str:
    """Return a GitHub workflow annotation per finding and per unreadable file."""
    data = {ord("%"): "%25", ord("\r"): "%0D", ord("\n"): "%0A"}
    place = data | {ord(":"): "%3A", ord(","): "%2C"}
    lines = [
        f"::warning file={each.path.translate(place)},line={each.line},col={each.column},title={each.code}::"
        + each.message.translate(data)
        for each in found
    ]
    return "\n".join(
        [
            *lines,
            *(
                f"::error file={p.translate(place)}::{text.translate(data)}"
                for p, text in errors.items()
            ),
        ]
    )


PAGE = """\
# {rule.code}: {rule.name}

## What it does

Reports: {message}.{off}

## Why

{rule.why}{check}{report}

## Example

```python
{rule.wrong}```

## Use instead

{rule.fix}

```python
{rule.right}```

## Suppression

Add `# ampsim: ignore[{rule.code}]` at the end of the line, or list the rule in `ignore` of \
`[tool.ampsim]` in pyproject.toml.
"""
OFF = " Off by default. Enable it with `--select {rule.code}`."
CHECK = """

Such a loop fails the check `{rule.check}` of [`ampsim.testing.check_loop`](../how-to/loop.md), \
which runs the loop."""
REPORT = "\n\nA public report: <{rule.thread}>"


def explained(rule: Rule) -> str:
    """Return the page of a rule, as Markdown."""
    return PAGE.format(
        rule=rule,
        message=lint(rule.wrong, codes=[rule.code])[0].message,
        off="" if rule.on else OFF.format(rule=rule),
        check=CHECK.format(rule=rule) if rule.check else "",
        report=REPORT.format(rule=rule) if rule.thread else "",
    )


FORMATS = {"text": as_text, "json": as_json, "github": as_github}
