"""Checks and their results, shared by scalers, loops, ranks, and frameworks."""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ampsim.core.validation import nearest
from ampsim.testing.alarm import CannotJudgeError

Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]
Story = list[tuple[str, str]]  # (label, text): the lines below a failure
Each = TypeVar("Each", bound="Check")


@dataclass(frozen=True, kw_only=True, repr=False)
class Check:
    """A check: a function that tests one property, and the texts that reports print.

    Attributes:
        name: name of the function, used by reports and `--check`.
        statement: the property, in one sentence.
        function: tests the property.
        issue: address of a public report of a failure.
        level: sort key of a report.
        label: what a table shows beside the name: "L5" for a level of scalers, "loop", "script", "ranks".
        needs: features that the check needs; it is skipped for a target that declares one of them
            unsupported.
    """

    name: str
    statement: str
    function: Callable[..., Any]
    issue: str = ""
    level: int = 0
    label: str = ""
    needs: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<check {self.name}>"


@dataclass(frozen=True)
class Result:
    """The outcome of one check on one target.

    Attributes:
        check: the one that ran.
        target: name of the scaler or the loop.
        outcome: in pytest's words. error: the check could not run; skipped: the target declares or
            is known to lack what the check needs; xfailed, xpassed: a failure was expected.
        text: the failure's message, the reason for an expectation, or why the check was skipped.
        is_overdue: whether it was ended by an alarm; that is never expected.
        hint: how to declare the difference, if that settles a failure; "" if not.
        raised: the exception of the target, in one line; "" for none.
    """

    check: Check
    target: str
    outcome: Outcome
    text: str = ""
    is_overdue: bool = False
    hint: str = ""
    raised: str = ""

    @property
    def is_finding(self) -> bool:
        """Whether the result needs attention: a failure or an xpass."""
        return self.outcome in ("failed", "xpassed")


class FailedError(AssertionError):
    """A check failed.

    Attributes:
        hint: See `Result`, as raised.
    """

    def __init__(self, text: str, hint: str = "", raised: str = "") -> None:
        super().__init__(text)
        self.hint = hint
        self.raised = raised


class BrokenError(FailedError):
    """A property does not hold; the text has the observed values."""


class RaisedError(FailedError):
    """A target raised during a check; the text starts with the name of the check and has the
    exception.
    """


def stating(
    kind: type[Each], checks: dict[str, Each], *, issue: str = "", **fields: Any
) -> Callable[..., Each]:
    """Return a decorator that makes a check of a function, whose name and docstring are the
    check's, and registers it.

    Args:
        kind: of check.
        checks: where it is registered, by its name.
        issue: ``owner/repository#number`` on GitHub, or an address.
        fields: the others of the kind.
    """

    def state(function: Callable[..., Any], name: str = "", text: str = "") -> Each:
        made = kind(
            name=name or function.__name__,
            statement=text or sentence(function),
            function=function,
            issue=address(issue),
            **fields,
        )
        if made.name in checks:
            raise ValueError(f"a check {made.name!r} exists: expected another name")
        checks[made.name] = made
        return made

    return state


def sentence(function: Callable[..., object]) -> str:
    """Return the property that a function tests: the first paragraph of its docstring, on one line."""
    return (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")


def address(issue: str) -> str:
    """Return the address of ``owner/repository#number``, and any other text as it is."""
    return re.sub(
        r"^([\w.-]+/[\w.-]+)#(\d+)$", r"https://github.com/\1/issues/\2", issue
    )


def require_known(checks: Collection[str], names: Collection[str] | None) -> None:
    """Raise ValueError for a name that no check has."""
    for name in names or ():
        if name not in checks:
            raise ValueError(f"no check {name!r}; {nearest(name, checks)}")


def chosen(checks: Mapping[str, Each], names: Collection[str] | None) -> list[Each]:
    """Return the checks of these names, or all; raise ValueError for an unknown one."""
    require_known(checks, names)
    return [each for name, each in checks.items() if names is None or name in names]


def described(check: Check, seen: str, story: Iterable[tuple[str, str]] = ()) -> str:
    """Return the text of a failure: check and observation, property, lines of (label, text), and
    issue.
    """
    lines = [f"{check.name}: {seen}"]
    for label, text in [("property", check.statement), *story, ("issue", check.issue)]:
        if text:
            lines.append(f"  {label:8} {text}")
    return "\n".join(lines)


def own_text(error: AssertionError) -> str:
    """Return the text of an assert, without what pytest adds where it has rewritten a module."""
    return str(error).partition("\nassert ")[0]


def failure_of(reason: str) -> type[AssertionError]:
    """Return the exception type that a reason expects: for ``raised ...`` RaisedError, else
    BrokenError.
    """
    return RaisedError if reason.startswith("raised ") else BrokenError


def settled(
    check: Check, failure: AssertionError | str | None, reason: str | None
) -> tuple[Outcome, str]:
    """Return outcome and text of a check, from its failure, if any, and the reason of an expected
    failure, if any.
    """
    if failure is None and reason is None:
        return "passed", ""
    if failure is None:
        text = f"{check.name} passed, but was expected to fail: {reason}; remove the expectation"
        return "xpassed", text
    if reason is None:
        return "failed", str(failure)
    is_other = not isinstance(failure, str | failure_of(reason))
    if is_other:
        text = f"{failure}\n  expected {reason}, but this is another kind of failure"
        return "failed", text
    return "xfailed", reason


def findings(results: Sequence[Result]) -> list[Result]:
    """Return the results that need attention, without the checks that hung on a target that was
    stopped.
    """
    hung = [each for each in results if each.is_overdue]
    stopped = {each.target for each in hung if each.outcome == "error"}
    needing = [each for each in results if each.is_finding]
    return [each for each in needing if each not in hung or each.target not in stopped]


def by_cause(results: Sequence[Result]) -> list[tuple[Result, str]]:
    """Return results with their texts, merged if a target raises the same exception or has the same
    hint; those with a hint, which a declaration may settle, are last.
    """
    groups: dict[tuple[str, str], list[Result]] = {}
    for each in results:
        cause = each.hint or each.raised or each.text
        groups.setdefault((each.target, cause), []).append(each)
    merged = []
    for first, *others in groups.values():
        text = first.text
        if others:
            text += f"\n  also     {', '.join(each.check.name for each in others)}"
        merged.append((first, text))
    return sorted(merged, key=lambda each: bool(each[0].hint))


def raise_findings(results: Iterable[Result]) -> list[Result]:
    """Return the results; raise if they have findings.

    Raises:
        AssertionError: There are findings; the text has all of them.
        CannotJudgeError: There is no finding, but a check could not run.
    """
    __tracebackhide__ = True  # for pytest
    results = [*results]
    refused = [result.text for result in results if result.outcome == "error"]
    if texts := [text for _, text in by_cause(findings(results))]:
        raise AssertionError("\n\n".join([*texts, *refused]))
    if refused:
        raise CannotJudgeError("\n\n".join(refused))
    return results
