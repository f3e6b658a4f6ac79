"""How findings and rules are written: text, JSON, and annotations of GitHub."""

import json
from collections.abc import Mapping, Sequence

from ampsim.lint.engine import RULES, Finding, Rule


def as_text(found: Sequence[Finding], errors: Mapping[str, str]) -> str:
    """Return a line per finding, and at the end their number."""
    lines = [f"{each.path}:{each.line}:{each.column}: {each.code} {each.message}" for each in found]
    if found:
        count = f"{len(found)} finding{'s' * (len(found) > 1)}"
        lines.append(
            f"{count}; ampsim lint --explain {found[0].code} says why, and shows a loop without it"
        )
    return "\n".join(lines)


def as_json(found: Sequence[Finding], errors: Mapping[str, str]) -> str:
    """Return an object with the findings, each with its rule's check and thread, and the files that are unreadable."""
    said = {
        code: {
            "rule": rule.name,
            "check": rule.check,
            "reason": rule.sentence,
            "thread": rule.thread,
        }
        for code, rule in RULES.items()
    }
    return json.dumps(
        {"findings": [vars(each) | said[each.code] for each in found], "errors": dict(errors)},
        indent=2,
    )


def as_github(found: Sequence[Finding], errors: Mapping[str, str]) -> str:
    """Return an annotation per finding and per unreadable file, as GitHub's workflows read them."""
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
                f"::error file={p.translate(place)}::{said.translate(data)}"
                for p, said in errors.items()
            ),
        ]
    )


def explained(rule: Rule) -> str:
    """Return the page of a rule, as Markdown."""
    parts = [f"# {rule.code}: {rule.name}", rule.sentence]
    if rule.check:
        parts.append(
            f"Check: `{rule.check}` of `ampsim.testing.check_loop`, which asks it of the running loop."
        )
    if rule.thread:
        parts.append(f"A public report: {rule.thread}")
    parts += [f"Wrong:\n\n```python\n{rule.wrong}```", f"Right:\n\n```python\n{rule.right}```"]
    silent = f"`# ampsim: ignore[{rule.code}]` at the end of the line"
    parts.append(f"{silent}, or `ignore` in `[tool.ampsim]` of pyproject.toml, silences it.")
    if not rule.on:
        parts.append(f"Off by default: `--select {rule.code}` asks it.")
    return "\n\n".join(parts) + "\n"


FORMATS = {"text": as_text, "json": as_json, "github": as_github}
