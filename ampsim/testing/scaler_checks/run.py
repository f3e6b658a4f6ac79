"""Run checks on any loss scaler, and report each failure with a minimal overflow sequence.

The intended differences of a scaler are its `Traits`; checks of unsupported features are skipped.
Known failures are expected by name, with a reason and a link, and strictly: an xpass is a finding,
and so is an exception instead of a failed check. A reason that starts with ``raised``, like the
failure, expects the exception. What torch's scaler fails too (`known_failures.known`) is expected
of each scaler, but may pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ampsim.core.validation import as_int
from ampsim.testing import check
from ampsim.testing.check import Result, raise_findings
from ampsim.testing.judge import judged, until_second_hang
from ampsim.testing.known_failures import TORCH
from ampsim.testing.scaler_checks import CHECKS
from ampsim.testing.scaler_checks.check import LEVELS, ScalerCheck
from ampsim.testing.scaler_checks.subject import Subject, as_subject
from ampsim.testing.scaler_checks.traits import Traits

THREADS = LEVELS.index("threads")


def chosen(
    levels: Sequence[int] | None = None,
    expected: Mapping[str, str] | None = None,
    names: Sequence[str] | None = None,
) -> list[ScalerCheck]:
    """Return the checks of these levels and names, or all; raise TypeError for levels that are no
    list, and ValueError for an unknown level or name.
    """
    if isinstance(levels, int):
        raise TypeError(f"levels={levels}: expected a list; pass levels=[{levels}]")
    for level in levels or ():
        if as_int("level", level, 0, "levels begin at 0") >= len(LEVELS):
            raise ValueError(
                f"level={level}: expected 0 to {len(LEVELS) - 1}: {', '.join(LEVELS)}"
            )
    check.require_known(CHECKS, expected)
    named = sorted(check.chosen(CHECKS, names or None), key=lambda each: each.level)
    return [each for each in named if not levels or each.level in levels]


def run_checks(
    target: object,
    checks: Sequence[ScalerCheck],
    *,
    examples: int | None = None,
    seed: int | None = None,
    expected: Mapping[str, str] | None = None,
    strict: bool = False,
    limit: float | None = None,
) -> Iterator[Result]:
    """Run checks in order and yield each Result; `check_scaler` explains the arguments."""
    subject = as_subject(target)
    subject.try_out()

    def judge(each: ScalerCheck) -> Result:
        run = partial(each, subject, examples=examples, seed=seed, limit=limit)
        reason, may_pass = expectation(each, subject, expected or {}, strict=strict)
        result = judged(each, subject.name, run, reason)
        if result.outcome == "xpassed" and may_pass:
            result = replace(result, outcome="passed", text="")
        return result

    yield from until_second_hang(map(judge, checks))


def expectation(
    check: ScalerCheck, subject: Subject, expected: Mapping[str, str], *, strict: bool
) -> tuple[str | None, bool]:
    """Return why a check is expected to fail, or None, and whether it may pass all the same."""
    if check.name in expected:
        reason = expected[check.name]
        return reason, reason == TORCH.get(check.name)
    known = None if strict else subject.known_failure(check.name)
    return known and f"known: {known}", True


def begin_checks(
    find: Callable[[], Subject],
    examples: int | None,
    seed: int | None,
    expected: Mapping[str, str],
    limit: float,
    strict: bool = False,
) -> Callable[[Sequence[str]], Iterator[Result]]:
    """Load a scaler and make one; return a function of names that runs those checks: see
    `ampsim.testing.child`.
    """
    subject = find()
    subject.try_out()
    return lambda names: run_checks(
        subject,
        chosen(names=names),
        examples=examples,
        seed=seed,
        expected=expected,
        strict=strict,
        limit=limit,
    )


def check_scaler(
    target: object,
    *,
    traits: Traits | None = None,
    levels: Sequence[int] | None = None,
    checks: Sequence[str] | None = None,
    examples: int | None = None,
    seed: int | None = None,
    expected_failures: Mapping[str, str] | None = None,
    strict: bool = False,
    limit: float | None = None,
) -> list[Result]:
    """Run all checks on a scaler and raise if one fails.

    >>> from ampsim.testing import check_scaler
    >>> from ampsim.torch import GradScaler
    >>> results = check_scaler(GradScaler, levels=[0], examples=5)
    >>> {result.outcome for result in results}
    {'passed'}

    Args:
        target: ``make(rule)``, which returns an object with torch's GradScaler methods on the CPU;
            or a class with torch's constructor; or a `Subject`.
        traits: Intended differences of the scaler.
        levels: List of levels: 0 state machine, 1 torch's calls and errors, 2 several optimizers,
            3 threads, 4 checkpoint, 5 numerics. None for all.
        checks: Names of checks; None for all.
        examples: Maximum number of generated overflow sequences per check; None for those of the
            loaded hypothesis profile, or 60 without a profile.
        seed: Seed of the generated sequences; None for the profile's choice. Without a profile they
            are the same in each run.
        expected_failures: Name of a check -> reason, with a link. Strict: an xpass is a finding. A
            reason that starts with ``raised`` expects an exception of the scaler instead of a
            failed check.
        strict: Whether failures that `torch.amp.GradScaler` has too are findings. By default they
            are expected.
        limit: CPU time in seconds per check; None for the larger of 60 s and 1 s per example; 0 for
            no limit, e.g. in a debugger. A check that exceeds the limit, or five times the limit in
            wall time, is a finding. The limit applies on Unix in the main thread, to Python code
            and waits for locks, unless an alarm is already set.

    Returns:
        list[Result]: One result per check.

    Raises:
        AssertionError: A check failed; the text has all findings, each with the command that
            repeats it.
        TypeError: `levels` is no list.
        ValueError: There is no such level or check.
        CannotJudgeError: A second check did not end.
    """
    __tracebackhide__ = True  # for pytest
    expected = expected_failures or {}
    subject = as_subject(target, traits)
    selected = chosen(levels, expected, checks)
    results = run_checks(
        subject,
        selected,
        examples=examples,
        seed=seed,
        expected=expected,
        strict=strict,
        limit=limit,
    )
    return raise_findings(results)


def check_threads(
    target: object,
    *,
    traits: Traits | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> list[Result]:
    """Run only the checks of threads, like `check_scaler`: real threads, in all orders with few
    preemptions.

    The scheduler controls the locks that the module and the classes of the scaler take from
    `threading`. Each access to an attribute of the scaler is a point where another thread may run.

    Args:
        target: Scaler, as `check_scaler` takes it.
        traits: Intended differences of the scaler.
        expected_failures: Name of a check -> reason, with a link. Strict.

    Returns:
        list[Result]: One result per check.

    Raises:
        AssertionError: A check failed; the text has all findings.
    """
    __tracebackhide__ = True
    subject = as_subject(target, traits).declared(supported=frozenset({"threads"}))
    return check_scaler(subject, levels=[THREADS], expected_failures=expected_failures)
