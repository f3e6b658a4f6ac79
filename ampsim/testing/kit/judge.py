"""Ask checks of anyone's loss scaler, and say which was broken by what shortest history.

A scaler's intended differences are its `Traits`; the checks that ask for what it declares not to have are not asked. A
failure that is known is expected by name, with a reason and a link, and strictly: an expected failure that passes is a
finding, and so is an exception where a broken check was expected; but what inherits from torch's
scaler may keep a check of
`known_failures.TORCH`. A reason that begins with ``raised``, as the failure does, expects the exception.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from ampsim.core.validation import as_int
from ampsim.testing import check
from ampsim.testing.check import Result, without_findings
from ampsim.testing.judge import judged
from ampsim.testing.kit.check import EXAMPLES, LEVELS, ScalerCheck
from ampsim.testing.kit.check import warm_up as warm_up
from ampsim.testing.kit.checks import CHECKS
from ampsim.testing.kit.subject import Subject, Traits, as_subject
from ampsim.testing.known_failures import TORCH

THREADS = LEVELS.index("threads")


def chosen(
    levels: Sequence[int] | None = None,
    expected: Mapping[str, str] | None = None,
    names: Sequence[str] | None = None,
) -> list[ScalerCheck]:
    """Return the checks of these levels and names, or all; raise ValueError for an unknown level or name."""
    for level in levels or ():
        if as_int("level", level, 0, "levels begin at 0") >= len(LEVELS):
            raise ValueError(f"level={level}: expected 0 to {len(LEVELS) - 1}: {', '.join(LEVELS)}")
    check.chosen(CHECKS, expected or ())
    named = sorted(check.chosen(CHECKS, names or None), key=lambda each: each.level)
    return [each for each in named if not levels or each.level in levels]


def judge(
    target: object,
    checks: Sequence[ScalerCheck],
    *,
    examples: int = EXAMPLES,
    expected: Mapping[str, str] | None = None,
    limit: float | None = None,
) -> Iterator[Result]:
    """Ask checks one after the other and yield each one's Result as it comes; `check_scaler` explains the rest."""
    subject = as_subject(target)
    subject.try_out()
    for each in checks:
        ask, reason = (
            partial(each, subject, examples=examples, limit=limit),
            (expected or {}).get(each.name),
        )
        result = judged(each, subject.name, ask, reason)
        if result.outcome == "xpassed" and reason == TORCH.get(each.name) and subject.inherits:
            result = Result(each, subject.name, "passed", "")  # it may do better than torch's own
        yield result
        if result.outcome == "error":
            return


def begin_judging(
    find: Callable[[], Subject], examples: int, expected: Mapping[str, str], limit: float
) -> Callable[[Sequence[str]], Iterator[Result]]:
    """Load a scaler and make one; return a function of names that asks those checks: see `ampsim.testing.child`."""
    subject = find()
    subject.try_out()
    return lambda names: judge(
        subject, chosen(names=names), examples=examples, expected=expected, limit=limit
    )


def check_scaler(
    target: object,
    *,
    traits: Traits | None = None,
    levels: Sequence[int] | None = None,
    examples: int = EXAMPLES,
    expected_failures: Mapping[str, str] | None = None,
    limit: float | None = None,
) -> list[Result]:
    """Ask every check of a scaler, and raise AssertionError with all findings if there are any.

    Args:
        target: ``make(rule)``, which returns an object with torch's GradScaler methods that works on the CPU; or a
            class with torch's constructor; or a `Subject`.
        traits: what it does differently on purpose.
        levels: indices into `LEVELS`; None is all.
        examples: histories per check, at most.
        expected_failures: name of a check -> reason, with a link. Strict. The check is expected to be broken; where
            the reason begins with ``raised``, the scaler to raise.
        limit: seconds of CPU time per check; None is a minute, or a second per example if that is more; 0 is no limit,
            as a debugger wants it. What lasts longer, or five times as long by the clock, is a finding. Kept on Unix,
            in the main thread, where Python code runs or a lock is waited for, unless an alarm is set already.

    Raises:
        CannotJudgeError: a second check did not end, or an import in one.
    """
    __tracebackhide__ = True  # for pytest
    expected = expected_failures or {}
    subject, checks = as_subject(target, traits), chosen(levels, expected)
    return without_findings(
        judge(subject, checks, examples=examples, expected=expected, limit=limit)
    )


def check_threads(
    target: object,
    *,
    traits: Traits | None = None,
    examples: int = EXAMPLES,
    expected_failures: Mapping[str, str] | None = None,
) -> list[Result]:
    """Ask the checks of threads only, as `check_scaler` would: real threads, in every order with few preemptions.

    Locks that the scaler's module and its classes take from `threading` are put under the scheduler, and each
    access to an attribute of the scaler is a place where another thread may go on.
    """
    __tracebackhide__ = True
    return check_scaler(
        target,
        traits=traits,
        levels=[THREADS],
        examples=examples,
        expected_failures=expected_failures,
    )
