"""The laws of a loop as a pytest decorator: one test per loop and law, with expected failures as strict xfails."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from ampsim.testing.kit.result import BrokenError
from ampsim.testing.loop.judge import chosen, judge_loop
from ampsim.testing.loop.runs import Make


def parametrize_with_laws(
    makes: Sequence[Make],
    batches: Iterable[Any],
    laws: Sequence[str] | None = None,
    *,
    expected_failed_laws: Mapping[str, str] | None = None,
) -> pytest.MarkDecorator:
    """Parametrize a test ``(make, law)`` whose body is ``law(make)``.

    ::

        @parametrize_with_laws([make], batches, expected_failed_laws={"resume_is_invisible": "not yet: <link>"})
        def test_my_loop_keeps_the_laws(make, law):
            law(make)

    A law that is not asked of a loop skips its test and says why.

    Args:
        makes: functions of a scaler that return a `Loop`.
        batches: as `check_loop` takes them.
        laws: names; None is all.
        expected_failed_laws: name of a law -> reason, with a link. One that holds fails the test.
    """
    given, expected = [*batches], expected_failed_laws or {}
    chosen(expected)
    cases = []
    for make in makes:
        for law in chosen(laws):
            reason = expected.get(law.name)
            marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True, raises=BrokenError)]
            name = getattr(make, "__name__", "loop")
            cases.append(pytest.param(make, _asked(law.name, given), id=f"{name}-{law.name}", marks=marks))
    return pytest.mark.parametrize(("make", "law"), cases)


def _asked(law: str, batches: Sequence[Any]) -> Callable[[Make], None]:
    def ask(make: Make) -> None:
        __tracebackhide__ = True
        for result in judge_loop(make, batches, [law]):
            if result.outcome == "declared":
                pytest.skip(result.text)
            if result.is_finding:
                raise (AssertionError if result.is_overdue else BrokenError)(result.text)  # a hang is never expected

    return ask
