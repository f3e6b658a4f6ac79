"""The checks as pytest decorators: one test per target and check, with expected failures as strict xfails."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from ampsim.testing.check import BrokenError, Check, failure_of
from ampsim.testing.kit import judge as scalers
from ampsim.testing.kit.subject import Subject, as_subject
from ampsim.testing.loop import judge as loops
from ampsim.testing.loop.loop import LoopError
from ampsim.testing.loop.runs import Make

Expected = Mapping[str, str]


def parametrize_with_checks(
    targets: Sequence[object],
    *,
    expected_failures: Expected | Callable[[Subject], Expected] | None = None,
    levels: Sequence[int] | None = None,
) -> pytest.MarkDecorator:
    """Parametrize a test ``(scaler, check)`` whose body is ``check(scaler)``.

    ::

        @parametrize_with_checks([make], expected_failures={"scale_is_never_subnormal": "no floor yet: <link>"})
        def test_my_scaler_conforms(scaler, check):
            check(scaler)

    Args:
        targets: makers, classes or Subjects, as `check_scaler` takes them.
        expected_failures: name of a check -> reason, with a link; or a function of the Subject that returns such a
            mapping. An expected failure that passes fails the test.
        levels: indices into `kit.check.LEVELS`; None is all.
    """
    cases = []
    for subject in map(as_subject, targets):
        given = expected_failures or {}
        expected = given(subject) if callable(given) else given
        for check in scalers.chosen(levels, expected):
            missing = check.lacks(subject)
            marks = (
                [pytest.mark.skip(reason=f"without {missing}")]
                if missing
                else _xfail(check, expected)
            )
            cases.append(
                pytest.param(subject, check, id=f"{subject.name}-{check.name}", marks=marks)
            )
    return pytest.mark.parametrize(("scaler", "check"), cases)


def parametrize_with_laws(
    makes: Sequence[Make],
    batches: Iterable[Any],
    checks: Sequence[str] | None = None,
    *,
    expected_failures: Expected | None = None,
) -> pytest.MarkDecorator:
    """Parametrize a test ``(make, check)`` whose body is ``check(make)``.

    ::

        @parametrize_with_laws([make], batches, expected_failures={"resume_is_exact": "not yet: <link>"})
        def test_my_loop_keeps_the_laws(make, check):
            check(make)

    A check that is not asked of a loop skips its test and says why.

    Args:
        makes: functions of a scaler that return a `Loop`.
        batches: as `check_loop` takes them.
        checks: names; None is all.
        expected_failures: name of a check -> reason, with a link. One that holds fails the test.
    """
    given, expected, cases = [*batches], expected_failures or {}, []
    loops.chosen(expected)
    for make in makes:
        for check in loops.chosen(checks):
            name = f"{getattr(make, '__name__', 'loop')}-{check.name}"
            cases.append(
                pytest.param(
                    make, _asked(check.name, given), id=name, marks=_xfail(check, expected)
                )
            )
    return pytest.mark.parametrize(("make", "check"), cases)


def _xfail(check: Check, expected: Expected) -> list[pytest.MarkDecorator]:
    reason = expected.get(check.name)
    return (
        []
        if reason is None
        else [pytest.mark.xfail(reason=reason, strict=True, raises=failure_of(reason))]
    )


def _asked(check: str, batches: Sequence[Any]) -> Callable[[Make], None]:
    def ask(make: Make) -> None:
        __tracebackhide__ = True
        for result in loops.judge_loop(make, batches, [check]):
            if result.outcome == "skipped":
                pytest.skip(result.text)
            if result.outcome == "error":
                raise LoopError(result.text)
            if result.is_finding:
                raise (AssertionError if result.is_overdue else BrokenError)(
                    result.text
                )  # a hang is never expected

    return ask
