"""Runs the conformance suite's checks on an adapter.

One rule applies to all packages, including ampsim: documented behavior that fails a check is an
expected failure, with a link. At the limits of float32, it is a failure, documented or not.
Packages may accept invalid arguments: the checks do not require an error.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from typing import Any

from ampsim.frameworks.adapter import Adapter
from ampsim.frameworks.checks.subject import (
    FLOOR,
    HAS,
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
CALLS_DRAWN = {"state_dict_continues_run"}  # which are drawn where a scaler has them
TENSORS = {  # names in checks that run tensors, or torch's calls one by one
    *("torch", "scale", "step", "unscale_", "update", "param", "optimizer"),
    *("iterate_all", "ready_to_step", "raises", "trained_bits", "subject"),
}
UNASKED = {  # checks that an adapter could be asked, and is not: why
    "scale_is_exact_float32": "torch's kernel to the last bit; `drift` compares each adapter with its own dialect",
    "state_dict_is_snapshot": "what an adapter saves is taken through JSON, and is a copy whatever it was",
    "invalid_state_dict_changes_nothing": "of torch's keys",
}
CHOICE = dict.fromkeys(  # checks that anybody may break by choice
    (
        "neutral_factors_raise",
        "invalid_arguments_raise",
    ),
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
LOUD = frozenset(
    name
    for name in SUITE
    if name.startswith(("no_step_on_nonfinite", "no_nonfinite_step"))
)  # kept by a step that raises
AT_ANY_DELAY = {"skips_stay_within_budget"}  # T1 is of the newest scale
OWN = {  # check -> what the package itself promises by a parameter
    "scale_stays_within_bounds": "its parameter of the smallest or the largest scale, or its documentation of one",
}


def asked(check: ScalerCheck) -> bool:
    """Return whether a check of the suite can run on an adapter, i.e. needs no torch tensors."""
    names = {*check.function.__code__.co_names}
    uses_tensors = "torch" in names or (
        TENSORS & names and check.name not in CALLS_DRAWN
    )
    return {*check.needs} <= HAS and not uses_tensors and check.name not in UNASKED


CHECKS = {name: check for name, check in SUITE.items() if asked(check)}
"""The checks of the suite that run on adapters, by name."""


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
    subjects = cache(partial(subject_of, adapter))
    for check in checks:
        yield _Asking(adapter, check, examples, subjects).verdict()


class _Asking:
    """A running check on an adapter, with its minimal falsifying example."""

    def __init__(
        self,
        adapter: Adapter,
        check: ScalerCheck,
        examples: int,
        subjects: Callable[..., Subject],
    ) -> None:
        self.adapter = adapter
        self.check = check
        self.examples = examples
        self.subjects = subjects
        self.failure: Failure | None = None
        self.seen = ""
        self.why_not = "no example could be judged"
        self.has_judged = False

    def verdict(self) -> Verdict:
        """Run the check and return the outcome."""
        name, documented = (
            self.check.name,
            {} if self.check.name in ENDS else self.adapter.deviations,
        )
        result = judged(self.check, self.adapter.name, self.ask, documented.get(name))
        if result.outcome == "failed" and name in CHOICE:
            result = replace(result, outcome="xfailed", text=CHOICE[name])
        return Verdict(result, self.failure, self.seen if self.failure else result.text)

    def ask(self) -> None:
        """Raise BrokenError or RaisedError if the check fails, NotApplicableError if it does not
        apply.
        """
        check = self.check
        patience = 2 if check.level == 4 else 1  # a count that has to be saved
        floor = None if "gives_up" in check.needs else FLOOR
        subject = self.subjects(
            patience=patience, floor=floor, late=check.name in AT_ANY_DELAY
        )
        if missing := sorted(subject.unsupported.keys() & {*check.needs}):
            raise NotApplicableError(f"it is without {', '.join(missing)}")
        examples = Examples(self.examples, SEED)
        self.failure = replace(check, function=self._judged()).falsify(
            subject, examples
        )
        if self.failure is not None:
            error = self.failure.error
            ours = isinstance(error, BrokenError)
            self.seen = (
                str(error) if ours else f"raised {type(error).__name__}: {error}"
            )
            raise (BrokenError if ours else RaisedError)(
                check.message(self.failure, examples)
            )
        if not self.has_judged:
            raise NotApplicableError(self.why_not)

    def _judged(self) -> Any:
        """Return the function of the check; it raises if the check cannot run on the adapter."""

        @wraps(self.check.function)
        def function(*args: Any, **given: Any) -> None:
            try:
                self.check.function(*args, **given)
            except UnaskableError as error:
                self.why_not = str(error)
                return
            except Exception as error:
                if isinstance(error, GaveUpError | RefusedError):
                    self.why_not = str(error)
                    return
                if isinstance(error, AssertionError) or self.check.name not in LOUD:
                    raise
            self.has_judged = True

        return function
