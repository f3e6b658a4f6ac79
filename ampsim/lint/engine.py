"""The rules by code, and the function that runs them on one source."""

import ast
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampsim.lint.rules import gradients, scaler, skips, windows
from ampsim.lint.source import Source, UnreadableError, parse
from ampsim.lint.walk import traces_of


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule of the lint: its texts are in `rules.toml`, its function is in `ampsim.lint.rules`.

    Attributes:
        code, name: the code, to print, ignore, or select; the name of the function, with hyphens.
        message: the text of a finding.
        why, fix: why the code is a problem; what to do.
        wrong, right: a loop with the problem; the same loop without it.
        asks: takes a trace and an event and returns whether the event is a finding; without
            `events`, takes a source and yields the nodes that are findings.
        events: the kinds of event that `asks` takes.
        check: the check of `ampsim.testing.check_loop` that such a loop fails; "" for none.
        thread: address of a public report; "" for none.
        on: whether the rule is on by default.
    """

    code: str
    name: str
    message: str
    why: str
    fix: str
    wrong: str
    right: str
    asks: Callable[..., Any]
    events: Sequence[str] = ()
    check: str = ""
    thread: str = ""
    on: bool = True

    def find(self, source: Source) -> Iterator[tuple[ast.AST, str]]:
        """Yield each finding in a source: its node and its message."""
        within = f" (with the fp16 scaler of {source.wrapped})" if source.wrapped else ""
        for trace, each in source.events(*self.events):
            if self.asks(trace, each):
                yield each.node, self.message.format(on=each.on, of=each.of) + within
        for node in () if self.events else self.asks(source):
            yield node, self.message + within


@dataclass(frozen=True, order=True)
class Finding:
    """A finding of a rule: the line and the column count from 1."""

    path: str
    line: int
    column: int
    code: str
    message: str


def _one_line(text: str) -> str:
    return " ".join(text.split())


TEXTS = tomllib.loads((Path(__file__).parent / "rules.toml").read_text(encoding="utf-8"))
ASKS = {
    name: asks for room in (skips, gradients, scaler, windows) for name, asks in vars(room).items()
}
RULES: Mapping[str, Rule] = {
    code: Rule(
        code=code,
        asks=ASKS[text["name"].replace("-", "_")],
        **text | {"why": _one_line(text["why"]), "fix": _one_line(text["fix"])},
    )
    for code, text in TEXTS.items()
}
DEFAULT = frozenset(code for code, rule in RULES.items() if rule.on)


def lint(text: str, path: str = "<source>", codes: Collection[str] = DEFAULT) -> list[Finding]:
    """Return the findings of these rules in a source, sorted by place.

    Raises:
        UnreadableError: The text is not Python source.
    """
    try:
        source = parse(text, path)
        if source is None or source.disabled:
            return []
        source.traces += traces_of(source)
        found = {
            Finding(
                path, getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1, code, message
            )
            for code in codes
            for node, message in RULES[code].find(source)
        }
    except RecursionError as error:
        raise UnreadableError(
            "nested too deeply: expected source that Python can compile"
        ) from error
    first = {(each.line, each.column, each.code): each for each in sorted(found, reverse=True)}
    return sorted(each for each in first.values() if not source.ignores(each.line, each.code))
