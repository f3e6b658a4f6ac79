"""Lints one source: the traces of its functions, what the rules find in them, and what is not asked or ignored."""

from collections.abc import Collection

from ampsim.lint.registry import RULES
from ampsim.lint.rule import Finding
from ampsim.lint.source import UnreadableError, parse
from ampsim.lint.walk import traces_of

DEFAULT = frozenset(code for code, rule in RULES.items() if rule.on)


def lint(text: str, path: str = "<source>", codes: Collection[str] = DEFAULT) -> list[Finding]:
    """Return what the rules of these codes find in a source, by place. UnreadableError: it is no Python source."""
    try:
        source = parse(text)
        if source is None or source.disabled:
            return []
        traces = [*traces_of(source)]
        found = {
            Finding(path, getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1, code, message)
            for code in codes
            for node, message in RULES[code].find(source, traces)
        }
    except RecursionError as error:
        raise UnreadableError("nested too deeply; expected source that Python compiles") from error
    first = {(each.line, each.column, each.code): each for each in sorted(found, reverse=True)}
    ignored = source.ignored if "ampsim:" in text and found else {}
    return sorted(each for each in first.values() if each.code not in ignored.get(each.line, ()))
