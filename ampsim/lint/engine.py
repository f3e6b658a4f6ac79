"""The rules, by code, and what they find in one source."""

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
    """A check of training loops as far as the source shows it: its words in `rules.toml`, a function of `rules`.

    Attributes:
        code, name: as it is printed, ignored and selected; in words, as the function is named.
        sentence, message: what is wrong, why, and the cure; what is printed.
        wrong, right: a loop that has it, and the same loop without it.
        asks: whether an event breaks it, from the trace and the event; without `events`, the places in a source.
        events: the kinds of event that are asked.
        check: the check of `ampsim.testing.check_loop` that such a loop breaks; "" where it breaks none.
        thread: a public report of it; "" where none is known.
        on: whether it is asked unless it is selected by name.
    """

    code: str
    name: str
    sentence: str
    message: str
    wrong: str
    right: str
    asks: Callable[..., Any]
    events: Sequence[str] = ()
    check: str = ""
    thread: str = ""
    on: bool = True

    def find(self, source: Source) -> Iterator[tuple[ast.AST, str]]:
        """Yield the places in a source that break it, and a message for each."""
        within = f" (the scaler: {source.wrapped}'s, for fp16)" if source.wrapped else ""
        for trace, each in source.events(*self.events):
            if self.asks(trace, each):
                yield each.node, self.message.format(on=each.on, of=each.of) + within
        for node in () if self.events else self.asks(source):
            yield node, self.message + within


@dataclass(frozen=True, order=True)
class Finding:
    """A place in a file, counted from 1, that breaks a rule."""

    path: str
    line: int
    column: int
    code: str
    message: str


TEXTS = tomllib.loads((Path(__file__).parent / "rules.toml").read_text(encoding="utf-8"))
ASKS = {
    name: asks for room in (skips, gradients, scaler, windows) for name, asks in vars(room).items()
}
RULES: Mapping[str, Rule] = {
    code: Rule(
        code=code,
        asks=ASKS[text["name"].replace("-", "_")],
        **text | {"sentence": " ".join(text["sentence"].split())},
    )
    for code, text in TEXTS.items()
}
DEFAULT = frozenset(code for code, rule in RULES.items() if rule.on)


def lint(text: str, path: str = "<source>", codes: Collection[str] = DEFAULT) -> list[Finding]:
    """Return what the rules of these codes find in a source, by place. UnreadableError: it is no Python source."""
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
        raise UnreadableError("nested too deeply; expected source that Python compiles") from error
    first = {(each.line, each.column, each.code): each for each in sorted(found, reverse=True)}
    return sorted(each for each in first.values() if not source.ignores(each.line, each.code))
