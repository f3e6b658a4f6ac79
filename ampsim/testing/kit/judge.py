"""Run checks on anyone's loss scaler, and say which law was broken by what shortest history.

A scaler's intended differences are its `Traits`; the checks that ask for what it declares not to have are not
run. A failure that is known is expected by name, with a reason and a link, and strictly: an expected failure
that passes is a finding, and so is an exception where a broken law was expected. A reason that begins with
``raised``, as the failure does, expects the exception.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from ampsim.core.arguments import as_int
from ampsim.testing.kit import result
from ampsim.testing.kit.alarm import OverdueError
from ampsim.testing.kit.check import EXAMPLES, LEVELS, Check, failure_of
from ampsim.testing.kit.checks import CHECKS
from ampsim.testing.kit.result import Outcome, Result, without_findings
from ampsim.testing.kit.subject import Subject, Traits, as_subject

THREADS = LEVELS.index("threads")


def chosen(
    levels: Sequence[int] | None = None, expected: Mapping[str, str] | None = None, names: Sequence[str] | None = None
) -> list[Check]:
    """Return the checks of these levels and names, or all; raise ValueError for an unknown level or name."""
    for level in levels or ():
        if as_int("level", level, 0, "levels begin at 0") >= len(LEVELS):
            raise ValueError(f"level={level}: expected 0 to {len(LEVELS) - 1}: {', '.join(LEVELS)}")
    result.chosen(CHECKS, expected or (), "check")
    named = sorted(result.chosen(CHECKS, names or None, "check"), key=lambda each: each.level)
    return [each for each in named if not levels or each.level in levels]


def judge(
    target: object,
    checks: Sequence[Check],
    *,
    examples: int = EXAMPLES,
    expected: Mapping[str, str] | None = None,
    limit: float | None = None,
) -> Iterator[Result]:
    """Run checks one after the other and yield each one's Result as it comes; `check_scaler` explains the rest."""
    subject = as_subject(target)
    subject.try_out()
    for each in checks:
        yield Result(each, subject.name, *_run(each, subject, examples, (expected or {}).get(each.name), limit))


def _run(
    each: Check, subject: Subject, examples: int, reason: str | None, limit: float | None
) -> tuple[Outcome, str, bool]:
    if missing := each.lacks(subject):
        return "declared", f"without {missing}", False
    try:
        each(subject, examples=examples, limit=limit)
    except AssertionError as error:
        overdue = isinstance(error.__cause__, OverdueError)
        if reason is None or overdue:
            return "failed", str(error), overdue
        if isinstance(error, failure_of(reason)):
            return "expected", reason, False
        return "failed", f"{error}\n  expected {reason}: another kind of failure", False
    if reason is not None:
        return "surprise", f"{each.name} passes, but was expected to fail: {reason}; take it off the list", False
    return "passed", "", False


def begin_judging(
    find: Callable[[], Subject], examples: int, expected: Mapping[str, str], limit: float
) -> Callable[[Sequence[str]], Iterator[Result]]:
    """Load a scaler and make one; return a function of names that runs those checks: see `kit.apart`."""
    subject = find()
    subject.try_out()
    return lambda names: judge(subject, chosen(names=names), examples=examples, expected=expected, limit=limit)


def check_scaler(
    target: object,
    *,
    traits: Traits | None = None,
    levels: Sequence[int] | None = None,
    examples: int = EXAMPLES,
    expected_failed_checks: Mapping[str, str] | None = None,
    limit: float | None = None,
) -> list[Result]:
    """Run every check on a scaler, and raise AssertionError with all findings if there are any.

    Args:
        target: ``make(rule)``, which returns an object with torch's GradScaler methods that works on the CPU; or a
            class with torch's constructor; or a `Subject`.
        traits: what it does differently on purpose.
        levels: indices into `LEVELS`; None is all.
        examples: histories per check, at most.
        expected_failed_checks: name of a check -> reason, with a link. Strict. The law is expected to be broken; where
            the reason begins with ``raised``, the scaler to raise.
        limit: seconds per check; None is a minute, or a second per example if that is more; 0 is no limit, as a
            debugger wants it. What lasts longer is a finding. Kept on Unix, in the main thread, where Python code
            runs or a lock is waited for, unless an alarm is set already.
    """
    __tracebackhide__ = True  # for pytest
    expected = expected_failed_checks or {}
    subject, checks = as_subject(target, traits), chosen(levels, expected)
    return without_findings(judge(subject, checks, examples=examples, expected=expected, limit=limit))


def check_threads(
    target: object,
    *,
    traits: Traits | None = None,
    examples: int = EXAMPLES,
    expected_failed_checks: Mapping[str, str] | None = None,
) -> list[Result]:
    """Run the checks of threads only, as `check_scaler` would: real threads, in every order with few preemptions.

    Locks that the scaler's module and its classes take from `threading` are put under the conductor, and each
    access to an attribute of the scaler is a place where another thread may go on.
    """
    __tracebackhide__ = True
    return check_scaler(
        target, traits=traits, levels=[THREADS], examples=examples, expected_failed_checks=expected_failed_checks
    )
