"""The rules, by code, and what they find in one source."""

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

from ampsim.lint.rule import FINDERS, Finding, Rule
from ampsim.lint.rules import gradients, scaler, skips, windows
from ampsim.lint.source import UnreadableError, parse
from ampsim.lint.walk import traces_of

FILES = (skips, gradients, scaler, windows)
TEXTS = tomllib.loads((Path(__file__).parent / "rules.toml").read_text(encoding="utf-8"))
RULES: Mapping[str, Rule] = {
    code: Rule(code=code, find=FINDERS[code], **text | {"sentence": text["sentence"].replace("\n", " ")})
    for code, text in TEXTS.items()
}
DEFAULT = frozenset(code for code, rule in RULES.items() if rule.on)


def lint(text: str, path: str = "<source>", codes: Collection[str] = DEFAULT) -> list[Finding]:
    """Return what the rules of these codes find in a source, by place. UnreadableError: it is no Python source."""
    try:
        source = parse(text)
        if source is None or source.disabled:
            return []
        source.traces += traces_of(source)
        found = {
            Finding(path, getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1, code, message)
            for code in codes
            for node, message in RULES[code].find(source)
        }
    except RecursionError as error:
        raise UnreadableError("nested too deeply; expected source that Python compiles") from error
    first = {(each.line, each.column, each.code): each for each in sorted(found, reverse=True)}
    return sorted(each for each in first.values() if not source.ignores(each.line, each.code))
