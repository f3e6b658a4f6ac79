"""What a check of a scaler, or a law of a loop or of ranks, has come to; no framework is needed to say it."""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from ampsim.core.arguments import nearest

Outcome = Literal["passed", "failed", "expected", "surprise", "declared"]
Each = TypeVar("Each")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A check of a scaler, or a law of a loop or of ranks.

    Attributes:
        name: the law's, and what a report and `--check` call it.
        law: what must be true, in one sentence.
        function: finds out whether it is.
        issue: address of a public report of what broke this law.
        level: by which a report is sorted.
        group: the heading that it stands under in a report; its first word stands in a table.
    """

    name: str
    law: str = field(repr=False)
    function: Callable[..., Any] = field(repr=False)
    issue: str = field(default="", repr=False)
    level: int = 0
    group: str = field(default="", repr=False)


@dataclass(frozen=True)
class Result:
    """The outcome of one check of one scaler, or of one law of one loop.

    Attributes:
        check: the one that was run.
        subject: the scaler's or the loop's name.
        outcome: expected: failed as expected; surprise: passed but was expected to fail; declared: not asked.
        text: the failure's message, the reason for an expectation, or why it was not asked.
        is_overdue: whether it was ended by an alarm; that is never expected.
    """

    check: Judged
    subject: str
    outcome: Outcome
    text: str = ""
    is_overdue: bool = False

    @property
    def is_finding(self) -> bool:
        """Whether someone should look: a failure, or an expected failure that passes."""
        return self.outcome in ("failed", "surprise")


class BrokenError(AssertionError):
    """A law does not hold; the text says what was seen instead."""


def law_of(function: Callable[..., object]) -> str:
    """Return the law that a function asks for: the first paragraph of its docstring, on one line."""
    return (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")


def chosen(laws: Mapping[str, Each], names: Collection[str] | None, what: str = "law") -> list[Each]:
    """Return the laws of these names, or all; raise ValueError for an unknown one."""
    for name in names or ():
        if name not in laws:
            raise ValueError(f"no {what} {name!r}; {nearest(name, laws)}")
    return [each for name, each in laws.items() if names is None or name in names]


def described(check: Judged, seen: str, story: Sequence[tuple[str, str]] = ()) -> str:
    """Write what was seen under a check's name, then its law, the story in lines of (label, text), the issue."""
    lines = [("law", check.law), *story, ("issue", check.issue)]
    return "\n".join([f"{check.name}: {seen}", *(f"  {label:8} {text}" for label, text in lines if text)])


def settled(law: Judged, failure: str | None, reason: str | None) -> tuple[Outcome, str]:
    """Return the outcome of a law and its text, by how it broke, if it did, and why that was expected, if it was."""
    if failure is not None:
        return ("failed", failure) if reason is None else ("expected", reason)
    surprise = f"{law.name} holds, but was expected to be broken: {reason}; take it off the list"
    return ("passed", "") if reason is None else ("surprise", surprise)


def without_findings(results: Iterable[Result]) -> list[Result]:
    """Return the results; raise AssertionError with all findings if there are any."""
    __tracebackhide__ = True  # for pytest
    results = [*results]
    if findings := [result.text for result in results if result.is_finding]:
        raise AssertionError("\n\n".join(findings))
    return results
