"""A rule, and what it finds: `rules.toml` says what is wrong, a function in `rules` finds it."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ampsim.lint.source import Source

Found = Iterator[tuple[ast.AST, str]]
Finder = Callable[[Source], Found]
FINDERS: dict[str, Finder] = {}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A law of training loops as far as the source shows it.

    Attributes:
        code, name: as it is printed, ignored and selected; in words.
        sentence: what is wrong, why, and the cure.
        wrong, right: a loop that has it, and the same loop without it.
        law: the law of `ampsim.testing.check_loop` that such a loop breaks; "" where it breaks none.
        thread: a public report of it; "" where none is known.
        on: whether it is asked unless it is selected by name.
        find: yields the places in a file, and a message for each.
    """

    code: str
    name: str
    sentence: str
    wrong: str
    right: str
    find: Finder
    law: str = ""
    thread: str = ""
    on: bool = True


@dataclass(frozen=True, order=True)
class Finding:
    """A place in a file, counted from 1, that breaks a rule."""

    path: str
    line: int
    column: int
    code: str
    message: str


def finds(code: str) -> Callable[[Finder], Finder]:
    """Return a decorator that makes a function what finds a rule."""

    def enter(finder: Finder) -> Finder:
        FINDERS[code] = finder
        return finder

    return enter
