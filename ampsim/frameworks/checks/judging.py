"""Runs the conformance suite's checks on an adapter.

One rule applies to all packages, including ampsim: documented behavior that fails a check is an
expected failure, with a link. At the limits of float32, it is a failure, documented or not.
Packages may accept invalid arguments: the checks do not require an error.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import Any

from ampsim.frameworks.adapter import Adapter
from ampsim.frameworks.checks.subject import (
    FLOOR,
    GaveUpError,
    RefusedError,
    UnaskableError,
    subject_of,
)
from ampsim.testing.check import BrokenError, RaisedError, Result
from ampsim.testing.examples import SEED, Examples
from ampsim.testing.judge import NotApplicableError, judged
from ampsim.testing.scaler_checks import CHECKS as SUITE
from ampsim.testing.scaler_checks.check import Failure, ScalerCheck
from ampsim.testing.scaler_checks.subject import Subject

EXAMPLES = 12
# The checks that need no torch tensors, and no call of torch's that an adapter lacks. Three more
# could run, but would show nothing: `drift` compares each adapter with its own dialect to the last
# bit, so scale_is_exact_float32 does not; an adapter's checkpoint goes through JSON, so it is a
# snapshot; and the keys of invalid_state_dict_changes_nothing are torch's.
CHECKS = {
    name: SUITE[name]
    for name in (
        "state_dict_continues_run",
        "neutral_factors_raise",
        "invalid_arguments_raise",
        "scale_is_never_subnormal",
        "scale_recovers_after_overflows",
        "scale_stays_power_of_two",
        "minimum_scale_error_repeats",
        "no_step_on_nonfinite_gradients",
        "no_nonfinite_step_below_scale_one",
        "finite_gradients_never_skip",
        "unscale_uses_scale_of_loss",
        "overflow_backs_off_once",
        "finite_step_never_lowers_scale",
        "growth_waits_for_interval",
        "growth_multiplies_by_factor",
        "scale_is_never_infinite",
        "scale_stays_within_bounds",
        "skips_stay_within_budget",
        "get_scale_matches_scale",
    )
}
"""The checks of the suite that run on adapters, by name."""
CHOICE = dict.fromkeys(  # checks that anybody may break by choice
    ("neutral_factors_raise", "invalid_arguments_raise"),
    "it checks no such constants; nonsense that is passed is taken",
)
# checks about the ends of float32, which the sum or norm of finite gradients passes too
ENDS = frozenset(
    (
        "scale_is_never_infinite",
        "scale_is_never_subnormal",
        "scale_recovers_after_overflows",
        "no_nonfinite_step_below_scale_one",
        "finite_gradients_never_skip",
    )
)
# check -> what the documentation of torch.amp.GradScaler promises; the scalers of the field follow
# it
TORCH = {
    "overflow_backs_off_once": "backoff_factor: by which the scale is multiplied if gradients are inf or NaN",
    "neutral_factors_raise": "an assertion of the constructor",
    "growth_waits_for_interval": "growth_interval: consecutive iterations that must occur for the scale to grow",
    "growth_multiplies_by_factor": "growth_factor: by which the scale is multiplied then",
    "get_scale_matches_scale": "get_scale(): the current scale; scale(): multiplies by it",
    "state_dict_continues_run": "state_dict(): the scale, the constants and the number of unskipped steps",
    "no_step_on_nonfinite_gradients": "step(): skipped if gradients are inf or NaN, to avoid corrupting the params",
    "no_nonfinite_step_below_scale_one": "step(): uses the unscaled gradients, skipped if those are inf or NaN",
    "unscale_uses_scale_of_loss": "step(): invokes the optimizer using the unscaled gradients",
    "finite_gradients_never_skip": "step(): if no inf or NaN is found, invokes the optimizer",
}
# These checks are kept by a step that raises.
LOUD = ("no_step_on_nonfinite_gradients", "no_nonfinite_step_below_scale_one")
AT_ANY_DELAY = {"skips_stay_within_budget"}  # T1 is of the newest scale
OWN = {  # check -> what the package itself promises by a parameter
    "scale_stays_within_bounds": "its parameter of the smallest or the largest scale, or its documentation of one",
}


def promise(check: str) -> str:
    """Return who states the property of a check, and the text."""
    if check in TORCH:
        return f"torch: {TORCH[check]}"
    return f"the package: {OWN[check]}" if check in OWN else "ours"


@dataclass(frozen=True)
class Verdict:
    """Outcome of a check on an adapter.

    Attributes:
        result: Result of the conformance suite.
        example: Minimal falsifying example; None if the check passed.
        seen: Observation in that example, without its steps.
    """

    result: Result
    example: Failure | None = None
    seen: str = ""


def judge(adapter: Adapter, check: ScalerCheck, *, examples: int = EXAMPLES) -> Verdict:
    """Run a check on an adapter, with examples that Hypothesis generates (fixed seed) and shrinks.

    Args:
        adapter: Adapter to check.
        check: One of `CHECKS`.
        examples: Maximum number of generated examples.

    Returns:
        Verdict: The outcome.
    """
    return next(judge_all(adapter, [check], examples=examples))


def judge_all(
    adapter: Adapter, checks: Iterable[ScalerCheck], *, examples: int = EXAMPLES
) -> Iterator[Verdict]:
    """Run checks on an adapter one by one; checks of overflow sequences share their runs."""
    subject_with = cache(subject_of)
    for check in checks:
        subject = subject_with(
            adapter,
            hysteresis=2 if check.level == 4 else 1,  # a count that has to be saved
            min_scale=None if "gives_up" in check.needs else FLOOR,
            without_delay=check.name in AT_ANY_DELAY,
        )
        yield _verdict(adapter, subject, check, Examples(examples, SEED))


def _verdict(
    adapter: Adapter, subject: Subject, check: ScalerCheck, examples: Examples
) -> Verdict:
    failure: Failure | None = None
    seen = ""

    def ask() -> None:
        nonlocal failure, seen
        failure = _falsify(subject, check, examples)
        if failure is None:
            return
        error = failure.error
        kind = BrokenError if isinstance(error, BrokenError) else RaisedError
        seen = str(error)
        if kind is RaisedError:
            seen = failure.raised
        raise kind(check.message(failure, examples))

    documented = {} if check.name in ENDS else adapter.deviations
    result = judged(check, adapter.name, ask, documented.get(check.name))
    if result.outcome == "failed" and check.name in CHOICE:
        result = replace(result, outcome="xfailed", text=CHOICE[check.name])
    return Verdict(result, failure, seen if failure else result.text)


def _falsify(
    subject: Subject, check: ScalerCheck, examples: Examples
) -> Failure | None:
    """Return the minimal example that fails; raise NotApplicableError if none can be judged."""
    missing = sorted(subject.unsupported.keys() & {*check.needs})
    if missing:
        raise NotApplicableError(f"it is without {', '.join(missing)}")
    has_judged = False
    why_not = "no example could be judged"

    @wraps(check.function)
    def function(*args: Any, **given: Any) -> None:
        nonlocal has_judged, why_not
        try:
            check.function(*args, **given)
        except (UnaskableError, GaveUpError, RefusedError) as error:
            why_not = str(error)
            return
        except Exception as error:
            if isinstance(error, AssertionError) or check.name not in LOUD:
                raise
        has_judged = True

    failure = replace(check, function=function).falsify(subject, examples)
    if failure is None and not has_judged:
        raise NotApplicableError(why_not)
    return failure
