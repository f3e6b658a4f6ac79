"""A check, what asking it came to, and the words for that: the same for scalers, loops, ranks and frameworks."""

import inspect
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from ampsim.core.validation import nearest
from ampsim.testing.alarm import CannotJudgeError

CHECKS_VERSION = (
    "2026.12"  # of the set of checks: one that is new in it warns, and fails from the next one on
)
Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]
Each = TypeVar("Each", bound="Check")


@dataclass(frozen=True, kw_only=True)
class Check:
    """A sentence that must be true, stated once, as a function: it is asked, and it is printed.

    Attributes:
        name: the function's, and what a report and `--check` call it.
        statement: what must be true, in one sentence.
        function: finds out whether it is. What it takes its parameters' names say: something drawn, something worked
            out from that, or a word of the driver.
        issue: address of a public report of what broke this check.
        level: by which a report is sorted.
        group: the heading that it stands under in a report; its first word stands in a table.
        needs: names of features that a target may declare to be without, so that the check is skipped.
        draws: strategies, by the function's parameters.
        derives: by parameter, a function of the target's `Traits` and of what is drawn: what is known beforehand, as
            the scales that the reference machine uses; printed as a value.
        found: what broke a target once and is drawn too rarely to wait for; comes first, however few are drawn.
        last: what broke a target once and takes long; comes behind what is drawn, which is shorter.
        proof: what is printed in the function's place, for a check that looks at more than a test can say.
        since: the version of the checks that it is new in.
    """

    name: str
    statement: str = field(repr=False)
    function: Callable[..., Any] = field(repr=False)
    issue: str = field(default="", repr=False)
    level: int = 0
    group: str = field(default="", repr=False)
    needs: tuple[str, ...] = field(default=(), repr=False)
    draws: Mapping[str, Any] = field(default_factory=dict, repr=False)
    derives: Mapping[str, Callable[..., object]] = field(default_factory=dict, repr=False)
    found: Sequence[Mapping[str, object]] = field(default=(), repr=False)
    last: Sequence[Mapping[str, object]] = field(default=(), repr=False)
    proof: Callable[..., Any] | None = field(default=None, repr=False)
    since: str = field(default="", repr=False)

    @property
    def words(self) -> list[str]:
        """The parameters that a driver must have an answer to."""
        return [
            name
            for name in inspect.signature(self.function).parameters
            if name not in {*self.draws, *self.derives}
        ]


@dataclass(frozen=True)
class Result:
    """The outcome of one check on one target.

    Attributes:
        check: the one that ran.
        target: name of the scaler or the loop.
        outcome: in pytest's words. error: the check could not run; skipped: the target declares or is
            known to lack what the check needs; xfailed, xpassed: a failure was expected.
        text: the failure's message, the reason for an expectation, or why the check was skipped.
        is_overdue: whether it was ended by an alarm; that is never expected.
    """

    check: Check
    target: str
    outcome: Outcome
    text: str = ""
    is_overdue: bool = False

    @property
    def is_finding(self) -> bool:
        """Whether someone should look: a failure, unless its check is new, or an expected failure that passes."""
        return self.outcome == "xpassed" or (
            self.outcome == "failed" and self.check.since != CHECKS_VERSION
        )


class BrokenError(AssertionError):
    """A check does not hold; the text says what was seen instead."""


class RaisedError(AssertionError):
    """Something was raised where nothing may be; the text begins with the check's name and says what."""


def stating(
    kind: type[Each], checks: dict[str, Each], *, issue: str = "", **fields: Any
) -> Callable[..., Each]:
    """Return a decorator that makes a check of a function, whose name and docstring are the check's, and registers it.

    Args:
        kind: of check.
        checks: where it is registered, by its name.
        issue: ``owner/repository#number`` on GitHub, or an address.
        fields: the others of the kind.
    """

    def state(function: Callable[..., Any], name: str = "", text: str = "") -> Each:
        given = {
            "name": name or function.__name__,
            "statement": text or sentence(function),
            **fields,
        }
        made = kind(function=function, issue=address(issue), **given)
        return checks.setdefault(made.name, made)

    return state


def sentence(function: Callable[..., object]) -> str:
    """Return the check that a function asks for: the first paragraph of its docstring, on one line."""
    return (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")


def address(issue: str) -> str:
    """Return the address of ``owner/repository#number``, and any other text as it is."""
    return re.sub(r"^([\w.-]+/[\w.-]+)#(\d+)$", r"https://github.com/\1/issues/\2", issue)


def chosen(checks: Mapping[str, Each], names: Collection[str] | None) -> list[Each]:
    """Return the checks of these names, or all; raise ValueError for an unknown one."""
    for name in names or ():
        if name not in checks:
            raise ValueError(f"no check {name!r}; {nearest(name, checks)}")
    return [each for name, each in checks.items() if names is None or name in names]


def described(check: Check, seen: str, story: Sequence[tuple[str, str]] = ()) -> str:
    """Write what was seen under a check's name, then its sentence, the story in lines of (label, text), the issue."""
    lines = [("property", check.statement), *story, ("issue", check.issue)]
    return "\n".join(
        [f"{check.name}: {seen}", *(f"  {label:8} {text}" for label, text in lines if text)]
    )


def failure_of(reason: str) -> type[AssertionError]:
    """Return the kind of failure that is expected for a reason: a broken check, or for ``raised ...`` an exception."""
    return RaisedError if reason.startswith("raised ") else BrokenError


def settled(
    check: Check, failure: AssertionError | str | None, reason: str | None
) -> tuple[Outcome, str]:
    """Return the outcome of a check and its text, by how it broke, if it did, and why that was expected, if it was."""
    if failure is None:
        unexpected = (
            f"{check.name} passed, but was expected to fail: {reason}; remove the expectation"
        )
        return ("passed", "") if reason is None else ("xpassed", unexpected)
    if reason is None:
        return "failed", str(failure)
    if isinstance(failure, AssertionError) and not isinstance(failure, failure_of(reason)):
        return "failed", f"{failure}\n  expected {reason}: another kind of failure"
    return "xfailed", reason


def findings(results: Sequence[Result]) -> list[Result]:
    """Return what someone should look at; of a target that was given up, what did not end is no finding."""
    given_up = {each.target for each in results if each.outcome == "error" and each.is_overdue}
    return [
        each
        for each in results
        if each.is_finding and not (each.is_overdue and each.target in given_up)
    ]


def by_cause(results: Sequence[Result]) -> list[tuple[Result, str]]:
    """Return results with their texts, those of one cause as one: what raises the same, or has the same history."""
    groups: list[tuple[set[tuple[str, ...]], list[Result]]] = []
    for each in results:
        causes = _causes(each)
        for known, members in groups:
            if known & causes:
                known |= causes
                members.append(each)
                break
        else:
            groups.append((causes, [each]))
    also = [", ".join(each.check.name for each in others) for _, (_, *others) in groups]
    return [
        (
            first,
            f"{first.text}\n  also     {names}" if names else first.text + _perhaps(first, results),
        )
        for names, (_, (first, *_)) in zip(also, groups, strict=True)
    ]


def _perhaps(result: Result, results: Sequence[Result]) -> str:
    """Return which findings of its target may be why a check holds that was expected to be broken."""
    others = [
        each.check.name
        for each in results
        if (each.target, each.outcome) == (result.target, "failed")
    ]
    return f", unless it holds because of {', '.join(others)}" * (
        result.outcome == "xpassed" and bool(others)
    )


def _causes(result: Result) -> set[tuple[str, ...]]:
    """Return what tells that two findings have one cause: the exception, and the story in the text."""
    first, *lines = result.text.splitlines() or [""]
    _, _, seen = first.partition(": ")
    story = [line for line in lines if line.startswith(("  scaler  ", "  history ", "  scale   "))]
    causes = {(result.target, *story)} if len(story) > 2 else set()
    causes |= {(result.target, line) for line in lines if line.startswith("  choice  ")}
    return causes | ({(result.target, seen)} if seen.startswith("raised ") else set())


def without_findings(results: Iterable[Result]) -> list[Result]:
    """Return the results; raise AssertionError with all findings if there are any, and warn of broken new checks.

    CannotJudgeError is raised where there are none and a check could not be judged.
    """
    __tracebackhide__ = True  # for pytest
    results = [*results]
    for each in results:
        if each.outcome == "failed" and not each.is_finding:
            warnings.warn(
                f"new in {CHECKS_VERSION}, to fail in the next version: {each.text}", stacklevel=3
            )
    refused = [result.text for result in results if result.outcome == "error"]
    if texts := [text for _, text in by_cause(findings(results))]:
        raise AssertionError("\n\n".join([*texts, *refused]))
    if refused:
        raise CannotJudgeError("\n\n".join(refused))
    return results
