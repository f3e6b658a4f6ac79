"""A rule, and what it finds."""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ampsim.lint.event import Trace
from ampsim.lint.source import Source

Found = Iterator[tuple[ast.AST, str]]
SCALE, SKIP, RESUME = "scale_is_invisible", "skipped_step_never_happened", "resume_is_invisible"
SPLIT, LEARNS = "splitting_is_invisible", "it_learns"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A law of training loops as far as the source shows it.

    Attributes:
        code: as it is printed, ignored and selected.
        name: in words.
        sentence: what is wrong, why, and the cure.
        law: the law of `ampsim.testing.check_loop` that such a loop breaks; "" where it breaks none.
        thread: a public report of it; "" where none is known.
        wrong: a loop that has it.
        right: the same loop without it.
        find: yields the places and a message for each, of a file and the traces of its functions.
        on: whether it is asked unless it is selected by name.
    """

    code: str
    name: str
    sentence: str
    law: str
    thread: str
    wrong: str
    right: str
    find: Callable[[Source, Sequence[Trace]], Found]
    on: bool = True


@dataclass(frozen=True, order=True)
class Finding:
    """A place in a file, counted from 1, that breaks a rule."""

    path: str
    line: int
    column: int
    code: str
    message: str
