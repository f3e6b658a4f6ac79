"""Judges anyone's loss scaler: runs each check on it and says which law was broken, by what shortest history.

A check is a small function that drives a scaler through a `Trial` and fails where a law does not hold. What
it takes beside the trial hypothesis draws, always the same for the same check, and shrinks when it fails. A
scaler's intended differences are its `Traits`; the checks that ask for what it declares not to have are not
run. A failure that is known is expected by name, with a reason and a link, and strictly: an expected failure
that passes is a finding.

>>> import torch
>>> from ampsim.testing import check_scaler, known
>>> results = check_scaler(torch.amp.GradScaler, levels=[0], examples=5)
>>> {result.outcome for result in results}
{'passed'}
>>> check_scaler(torch.amp.GradScaler, levels=[5], examples=5, expected_failed_checks=known.TORCH)[0].check.name
'never_steps_on_nonfinite'
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from ampsim.core.arguments import nearest, whole
from ampsim.testing.kit.subject import Subject, Traits, subject
from ampsim.testing.kit.trial import BrokenError, Trial

LEVELS = (
    "state machine",
    "torch drop-in: calls and errors",
    "several optimizers",
    "threads",
    "checkpoint",
    "numerics",
)
THREADS = 3
EXAMPLES = 60
SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True)
class Check:
    """One law, as something that can be run on a scaler."""

    name: str
    level: int
    """Index into `LEVELS`."""
    law: str = field(repr=False)
    """What must be true, in one sentence."""
    function: Callable[..., None] = field(repr=False)
    issue: str = field(default="", repr=False)
    """Address of a public report of a scaler that broke this law."""
    needs: tuple[str, ...] = field(default=(), repr=False)
    """Of `adapter.FEATURES`: what a scaler may declare not to have."""
    draws: Mapping[str, SearchStrategy[Any]] | None = field(default=None, repr=False)

    def __call__(self, target: Any, *, examples: int = EXAMPLES) -> None:
        """Run this check; AssertionError, beginning with its name, if the law does not hold."""
        judged, trials = subject(target), [Trial(subject(target))]

        def example(**drawn: Any) -> None:
            trials[:] = [Trial(judged)]  # the last example that hypothesis runs is the shortest
            self.function(trials[0], **drawn)

        test = settings(SETTINGS, max_examples=examples)(given(**self.draws)(example)) if self.draws else example
        try:
            test()
        except Exception as error:
            raise AssertionError(self._message(trials[0], error)) from (None if _is_finding(error) else error)

    def lacks(self, traits: Traits) -> str:
        """Which of the features needed is declared missing; '' if none."""
        return ", ".join(sorted(traits.without.intersection(self.needs)))

    def _message(self, trial: Trial, error: Exception) -> str:
        seen = str(error) if _is_finding(error) else f"raised {type(error).__name__}: {error}"
        lines = [("law", self.law), *trial.story(), ("issue", self.issue)]
        return "\n".join([f"{self.name}: {seen}", *(f"  {label:8} {text}" for label, text in lines if text)])


def _is_finding(error: Exception) -> bool:
    return isinstance(error, BrokenError)


CHECKS: dict[str, Check] = {}  # by name, in the order of levels


def check(level: int, *, issue: str = "", needs: str = "", **draws: SearchStrategy[Any]) -> Callable[..., Check]:
    """Make a check of a function of a Trial and of what `draws` draws. Its name and docstring are the law's.

    Args:
        level: index into `LEVELS`.
        issue: ``owner/repository#number`` on GitHub, or an address.
        needs: features, separated by spaces.
        draws: strategies, by the function's parameters.
    """

    def register(function: Callable[..., None], name: str = "", law: str = "") -> Check:
        name, law = name or function.__name__, law or inspect.getdoc(function) or ""
        first = law.split("\n\n")[0].replace("\n", " ")
        made = CHECKS[name] = Check(name, level, first, function, address(issue), tuple(needs.split()), draws)
        return made

    return register


def address(issue: str) -> str:
    """The address of ``owner/repository#number``; others as they are."""
    return re.sub(r"^([\w.-]+/[\w.-]+)#(\d+)$", r"https://github.com/\1/issues/\2", issue)


Outcome = Literal["passed", "failed", "expected", "surprise", "declared"]


@dataclass(frozen=True)
class Result:
    """What one check said of one scaler."""

    check: Check
    subject: str
    outcome: Outcome
    """expected: failed as expected; surprise: passed but was expected to fail; declared: not run, by a trait."""
    text: str = ""
    """The failure's message, the reason for an expectation, or the trait."""

    @property
    def is_finding(self) -> bool:
        """Whether someone should look: a failure, or an expected failure that passes."""
        return self.outcome in ("failed", "surprise")


def chosen(levels: Sequence[int] | None = None, expected: Mapping[str, str] | None = None) -> list[Check]:
    """The checks of these levels, or all. ValueError for an unknown level or expected name."""
    from ampsim.testing.kit import checks

    assert checks  # noqa: S101  the import is what registers them
    for level in levels or ():
        if whole("level", level, 0, "levels begin at 0") >= len(LEVELS):
            raise ValueError(f"level={level}: expected 0 to {len(LEVELS) - 1}: {', '.join(LEVELS)}")
    for name in expected or ():
        if name not in CHECKS:
            raise ValueError(f"expected_failed_checks: no check {name!r}; {nearest(name, CHECKS)}")
    every = sorted(CHECKS.values(), key=lambda each: each.level)
    return [each for each in every if not levels or each.level in levels]


def judge(
    target: Any, checks: Sequence[Check], *, examples: int = EXAMPLES, expected: Mapping[str, str] | None = None
) -> Iterator[Result]:
    """Run checks one after the other; a Result each, as they come."""
    judged = subject(target)
    for each in checks:
        yield Result(each, judged.name, *_run(each, judged, examples, (expected or {}).get(each.name)))


def _run(each: Check, judged: Subject, examples: int, reason: str | None) -> tuple[Outcome, str]:
    if missing := each.lacks(judged.traits):
        return "declared", f"without {missing}"
    try:
        each(judged, examples=examples)
    except AssertionError as error:
        return ("failed", str(error)) if reason is None else ("expected", reason)
    if reason is not None:
        return "surprise", f"{each.name} passes, but was expected to fail: {reason}; take it off the list"
    return "passed", ""


def check_scaler(
    target: Any,
    *,
    traits: Traits | None = None,
    levels: Sequence[int] | None = None,
    examples: int = EXAMPLES,
    expected_failed_checks: Mapping[str, str] | None = None,
) -> list[Result]:
    """Judge a scaler by every check, and raise AssertionError with all findings if there are any.

    Args:
        target: ``make(rule)``, which returns an object with torch's GradScaler methods that works on the CPU; or a
            class with torch's constructor; or a `Subject`.
        traits: what it does differently on purpose.
        levels: indices into `LEVELS`; None is all.
        examples: histories a check tries, at most.
        expected_failed_checks: name of a check -> reason, with a link. Strict.
    """
    expected = expected_failed_checks or {}
    results = [*judge(subject(target, traits), chosen(levels, expected), examples=examples, expected=expected)]
    findings = [result.text for result in results if result.is_finding]
    if findings:
        raise AssertionError("\n\n".join(findings))
    return results


def check_threads(target: Any, **options: Any) -> list[Result]:
    """`check_scaler` with the checks of threads only: real threads, in every order with few preemptions.

    Locks that the scaler's module and its classes take from `threading` are put under the conductor, and each
    access to an attribute of the scaler is a place where another thread may go on.
    """
    return check_scaler(target, levels=[THREADS], **options)
