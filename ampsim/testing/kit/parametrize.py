"""The kit as a pytest decorator: one test per scaler and check, with expected failures as strict xfails."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from ampsim.testing.kit.check import Check, failure_of
from ampsim.testing.kit.judge import chosen
from ampsim.testing.kit.subject import Subject, as_subject

Expected = Mapping[str, str]


def parametrize_with_checks(
    targets: Sequence[object],
    *,
    expected_failed_checks: Expected | Callable[[Subject], Expected] | None = None,
    levels: Sequence[int] | None = None,
) -> pytest.MarkDecorator:
    """Parametrize a test ``(scaler, check)`` whose body is ``check(scaler)``.

    ::

        @parametrize_with_checks([make], expected_failed_checks={"scale_stays_normal": "no floor yet: <link>"})
        def test_my_scaler_conforms(scaler, check):
            check(scaler)

    Args:
        targets: makers, classes or Subjects, as `check_scaler` takes them.
        expected_failed_checks: name of a check -> reason, with a link; or a function of the Subject that returns
            such a mapping. An expected failure that passes fails the test.
        levels: indices into `kit.check.LEVELS`; None is all.
    """
    cases = []
    for subject in map(as_subject, targets):
        expected = expected_failed_checks(subject) if callable(expected_failed_checks) else expected_failed_checks or {}
        for check in chosen(levels, expected):
            marks = _marks(subject, check, expected.get(check.name))
            cases.append(pytest.param(subject, check, id=f"{subject.name}-{check.name}", marks=marks))
    return pytest.mark.parametrize(("scaler", "check"), cases)


def _marks(subject: Subject, check: Check, reason: str | None) -> list[pytest.MarkDecorator]:
    if missing := check.lacks(subject):
        return [pytest.mark.skip(reason=f"declared: without {missing}")]
    return [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True, raises=failure_of(reason))]
