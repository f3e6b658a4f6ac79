"""The checks as pytest decorators: one test per target and check, with expected failures as xfails."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ampsim.testing import plugin
from ampsim.testing.check import BrokenError, failure_of, require_known
from ampsim.testing.loop import judge as loops
from ampsim.testing.loop.checks import CHECKS as LOOP_CHECKS
from ampsim.testing.loop.loop import LoopError
from ampsim.testing.loop.play import Make
from ampsim.testing.scaler_checks import CHECKS as SCALER_CHECKS
from ampsim.testing.scaler_checks import run as scalers
from ampsim.testing.scaler_checks.check import ScalerCheck
from ampsim.testing.scaler_checks.subject import Subject, as_subject

Expected = Mapping[str, str]


def parametrize_with_checks(
    targets: Sequence[Any],
    batches: Iterable[Any] | None = None,
    *,
    checks: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
    expected_failures: Expected | Callable[[Subject], Expected] | None = None,
    strict: bool = False,
    examples: int | None = None,
    seed: int | None = None,
) -> pytest.MarkDecorator:
    """Parametrize a test of scalers or training loops, one test per target and check.

    For example::

        @parametrize_with_checks([make_scaler], expected_failures={"scale_is_never_subnormal":
        "<link>"}) def test_my_scaler(scaler, check):
            check(scaler)

        @parametrize_with_checks([make_loop], batches)
        def test_my_loop(loop, check):
            check(loop)

    A check that a target cannot run skips its test, with the reason.

    Args:
        targets: Scalers, as `check_scaler` takes them; with `batches`, functions of a scaler that
            return a `Loop`, as `check_loop` takes them.
        batches: At least 3 batches for the loops; None if the targets are scalers.
        checks: Names of checks; None is all.
        levels: Levels of checks, for scalers, as `check_scaler` takes them; None is all.
        expected_failures: Name of a check -> reason, with a link; for scalers also a function of
            the `Subject` that returns such a mapping. An expected failure that passes fails, except
            one of `known_failures.TORCH`.
        strict: Whether failures that `torch.amp.GradScaler` has too fail a test of a scaler. By
            default they are expected.
        examples: Maximum number of generated examples per check of scalers; None follows the
            hypothesis profile that is loaded, or 60 without a profile. ``pytest --ampsim-examples``
            replaces it.
        seed: Seed of the examples; None follows the profile and ``--hypothesis-seed``. Without
            either, they are the same in each run. ``pytest --ampsim-seed`` replaces it.

    Returns:
        pytest.MarkDecorator: Parameters ``(scaler, check)``, or ``(loop, check)`` with `batches`.

    Raises:
        ValueError: There is no such check.
    """
    if batches is None:
        dials: dict[str, Any] = {"examples": examples, "seed": seed, **plugin.chosen}
        selected = [
            replace(check, **dials) for check in scalers.chosen(levels, names=checks)
        ]
        expected = expected_failures or {}
        cases = _of_scalers(targets, selected, expected, strict=strict)
        return pytest.mark.parametrize(("scaler", "check"), cases)
    if callable(expected_failures) or levels is not None:
        raise TypeError(
            "expected a mapping for expected_failures, and no levels, with batches"
        )
    cases = _of_loops(targets, [*batches], checks, expected_failures or {})
    return pytest.mark.parametrize(("loop", "check"), cases)


def _of_scalers(
    targets: Sequence[object],
    checks: Sequence[ScalerCheck],
    expected_failures: Expected | Callable[[Subject], Expected],
    *,
    strict: bool,
) -> list[Any]:
    cases = []
    for subject in map(as_subject, targets):
        expected = expected_failures
        if callable(expected):
            expected = expected(subject)
        require_known(SCALER_CHECKS, expected)
        for check in checks:
            lack = check.skip_reason(subject)
            reason, may_pass = scalers.expectation(
                check, subject, expected, strict=strict
            )
            marks = _xfail(reason, strict=not may_pass)
            if lack:
                marks = [pytest.mark.skip(reason=lack)]
            name = f"{subject.name}-{check.name}"
            cases.append(pytest.param(subject, check, id=name, marks=marks))
    return cases


def _of_loops(
    makes: Sequence[Make],
    batches: Sequence[Any],
    checks: Sequence[str] | None,
    expected: Expected,
) -> list[Any]:
    require_known(LOOP_CHECKS, expected)
    cases = []
    for make in makes:
        for check in loops.chosen(checks):
            name = f"{getattr(make, '__name__', 'loop')}-{check.name}"
            run = _asked(check.name, batches)
            marks = _xfail(expected.get(check.name))
            cases.append(pytest.param(make, run, id=name, marks=marks))
    return cases


def _xfail(reason: str | None, *, strict: bool = True) -> list[pytest.MarkDecorator]:
    if reason is None:
        return []
    return [pytest.mark.xfail(reason=reason, strict=strict, raises=failure_of(reason))]


def _asked(check: str, batches: Sequence[Any]) -> Callable[[Make], None]:
    def ask(make: Make) -> None:
        __tracebackhide__ = True
        (result,) = loops.judge_loop(make, batches, [check])
        if result.outcome == "skipped":
            pytest.skip(result.text)
        if result.outcome == "error":
            raise LoopError(result.text)
        if result.is_finding:
            # A hang is never expected.
            kind = AssertionError if result.is_overdue else BrokenError
            raise kind(result.text)

    return ask
