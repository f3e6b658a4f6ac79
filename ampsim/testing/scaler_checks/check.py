"""A check of scalers: hypothesis generates its examples and shrinks the one that fails."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from traceback import extract_tb
from typing import Any

from hypothesis.strategies import SearchStrategy

from ampsim.testing import examples as generation
from ampsim.testing.alarm import OverdueError, alarm, place, user_frames
from ampsim.testing.check import (
    BrokenError,
    Check,
    RaisedError,
    Story,
    described,
    own_text,
    stating,
)
from ampsim.testing.examples import Examples, warm_up
from ampsim.testing.judge import NotApplicableError
from ampsim.testing.lines import TESTING
from ampsim.testing.scaler_checks.example import Example, example_of, readable
from ampsim.testing.scaler_checks.subject import Subject, as_subject
from ampsim.testing.scaler_checks.suggest_traits import (
    DECLARED,
    as_observed,
    suggestion,
)

LEVELS = (
    "state machine",
    "torch drop-in: calls and errors",
    "several optimizers",
    "threads",
    "checkpoint",
    "numerics",
)
OPTIONAL = {  # a generated value of this name is False for a scaler without this feature
    "fused": "fused",
    "unscales": "unscale_",
    "loads": "state_dict",
    "overrides": "override",
    "sets": "setters",
}


@dataclass(frozen=True)
class Failure:
    """The minimal example that fails: what it did, its generated values, and what it raised."""

    example: Example
    values: Mapping[str, Any]
    error: BaseException

    @property
    def raised(self) -> str:
        """The exception, as "raised KeyError: 1"."""
        return f"raised {type(self.error).__name__}: {self.error}"

    def story(self) -> Story:
        """Return what was requested, generated, and done, as lines of (label, text)."""
        return self.example.story(self.values)


@dataclass(frozen=True, kw_only=True, repr=False)
class ScalerCheck(Check):
    """A check of scalers; its level is an index into `LEVELS`.

    Attributes:
        adapts: Features without which the check tests less, instead of being skipped.
        strategies: Hypothesis strategies of the function's parameters after the first, which is a
            `ScalerAdapter`.
        found: Minimal falsifying examples that are rarely generated; they run first.
        last: Falsifying examples that take long; they run after the generated ones.
        printed: Function that a reproducer contains instead, if the check itself needs ampsim.
        examples: Number of examples; None follows the hypothesis profile.
        seed: Seed of the examples; None follows the profile.
    """

    adapts: tuple[str, ...] = ()
    strategies: Mapping[str, SearchStrategy[Any]]
    found: Sequence[Mapping[str, object]]
    last: Sequence[Mapping[str, object]]
    printed: Callable[..., None] | None
    examples: int | None = None
    seed: int | None = None

    def __call__(
        self,
        target: object,
        *,
        examples: int | None = None,
        seed: int | None = None,
        limit: float | None = None,
    ) -> None:
        """Run this check on a scaler.

        Args:
            target: Scaler, as `check_scaler` takes it.
            examples: Maximum number of generated examples; None follows the hypothesis profile.
            seed: Seed of the examples; None follows the profile.
            limit: CPU time in seconds; None for `time_limit`, 0 for no limit, e.g. in a debugger.
                See `ampsim.testing.alarm` for where limits apply.

        Raises:
            BrokenError: The property does not hold. The text starts with the name of the check.
            RaisedError: The scaler raised an unexpected exception.
            AssertionError: The check did not end within `limit`. This is never an expected failure.
            NotApplicableError: The scaler lacks what the check needs.
        """
        # For pytest: a failure points at the line that ran the check.
        __tracebackhide__ = True
        subject = as_subject(target)
        if reason := self.skip_reason(subject):
            raise NotApplicableError(reason)
        if not __debug__:
            raise RuntimeError(
                "checks use assert statements, which python -O removes: run without -O"
            )
        seed = self.seed if seed is None else seed
        chosen = generation.choose(examples or self.examples, seed)
        limit = time_limit(chosen.number) if limit is None else limit
        failure = self.falsify(subject, chosen, limit)
        if failure is None:
            return
        if isinstance(failure.error, OverdueError):
            raise AssertionError(self.message(failure, chosen)) from failure.error
        hints = Story()
        with suppress(OverdueError), alarm(limit):
            hints = suggestion(
                self, subject, partial(self.passes, examples=chosen), CHECKS.values()
            )
            if not any(label == "hint" for label, _ in hints):
                failure = self.apart(failure, chosen)
        text = self.message(failure, chosen, hints)
        hint = dict(hints).get("hint", "")
        if isinstance(failure.error, BrokenError):
            raise BrokenError(text, hint) from None
        raised, *_ = failure.raised.splitlines()
        raise RaisedError(text, hint, raised) from None

    def apart(self, failure: Failure, examples: Examples) -> Failure:
        """Return a failure without the differences that the scaler's observed traits settle.

        Another example may then show what is left. Its commands have the observed traits, so that
        a test that is written of it passes once the fault is repaired.
        """
        left = self.falsify(as_observed(failure.example.subject), examples)
        if left is None or isinstance(left.error, OverdueError):
            return failure
        return left

    def skip_reason(self, subject: Subject) -> str:
        """Return which features that this check needs a scaler lacks, and why; "" if none."""
        lacks = subject.unsupported
        missing = [name for name in self.needs if name in lacks]
        return ", ".join(f"unsupported: {name} ({lacks[name]})" for name in missing)

    def falsify(
        self,
        subject: Subject,
        examples: Examples,
        limit: float = 0.0,
        *,
        shrinks: bool = True,
    ) -> Failure | None:
        """Return the minimal example that fails, or the first one; None if the check passes."""
        warm_up()
        minimal: Failure | None = None

        def run_one(**values: Any) -> None:
            nonlocal minimal
            example = example_of(subject)
            values = self.fitted(subject, values)
            try:
                self.run_example(example, values)
            except BaseException as error:
                if minimal is None or not isinstance(error, OverdueError):
                    minimal = Failure(example, values, error)
                raise

        strategies = tuple(self.strategies.items())
        first_and_last = self.found, self.last
        try:
            with alarm(limit):
                generation.run(
                    run_one, strategies, examples, *first_and_last, shrinks=shrinks
                )
        except (Exception, SystemExit, OverdueError) as error:
            return minimal or Failure(example_of(subject), {}, error)
        return None

    def passes(self, subject: Subject, examples: Examples) -> bool:
        """Return whether the check passes or is skipped."""
        if self.skip_reason(subject):
            return True
        return self.falsify(subject, examples, shrinks=False) is None

    def fitted(self, subject: Subject, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return generated values as far as the scaler supports them."""
        fitted = dict(values)
        for name, feature in OPTIONAL.items():
            if name in fitted and feature in subject.unsupported:
                fitted[name] = False
        if "new_scale" in fitted:
            fitted["new_scale"] = subject.traits.within(fitted["new_scale"])
        return fitted

    def run_example(self, example: Example, values: Mapping[str, Any]) -> None:
        """Run one example. Raise BrokenError for an assertion of the check, and what the scaler
        raises.
        """
        try:
            self.function(example, **values)
        except example.traits.gives_up:
            if not example.may_give_up():
                raise
        except AssertionError as error:
            if extract_tb(error.__traceback__)[-1].filename.startswith(TESTING):
                text = own_text(error) or "the property does not hold"
                raise BrokenError(text) from None
            raise

    def message(
        self,
        failure: Failure,
        examples: Examples,
        hints: Iterable[tuple[str, str]] = (),
    ) -> str:
        """Write what an example showed, with hints, its story, and the line that repeats it."""
        error = failure.error
        seen = readable(str(error))
        where = Story()
        if isinstance(error, OverdueError):
            where.append(("where", place(error)))
        elif not isinstance(error, BrokenError):
            seen = failure.raised
            for frame in user_frames(error):
                call = f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
                where.append(("where", call))
        commands = self.commands(failure.example.subject, examples)
        return described(self, seen, [*hints, *where, *failure.story(), *commands])

    def commands(self, subject: Subject, examples: Examples) -> Story:
        """Return the commands that repeat the failure and write a test of it, as lines of (label,
        text).
        """
        if not re.fullmatch(r"[\w.]+:[\w.]+", subject.name):
            call = f"check_scaler(..., checks=[{self.name!r}])"
            return [("repeat", f"in Python: {call} on {subject.name!r}")]
        target = [subject.name, *subject.traits.as_options()]
        repeat = ["ampsim", "check", *target, "--check", self.name]
        if subject.known_failure(self.name):
            repeat.append("--strict")
        if not examples.is_default:
            repeat += ["--examples", str(examples.number), "--seed", str(examples.seed)]
        lines = [("repeat", shlex.join(repeat))]
        if self.has_test:
            emit = ["ampsim", "emit-test", self.name, *target]
            lines.append(("emit", shlex.join(emit)))
        return lines

    @property
    def has_test(self) -> bool:
        """Whether a failure can be written as a test without ampsim."""
        return self.level != LEVELS.index("threads") and self.name != DECLARED


def time_limit(examples: int) -> float:
    """Return the time limit in seconds of a check with this number of examples."""
    return max(60.0, examples)


CHECKS: dict[str, ScalerCheck] = {}  # by name, in the order of levels


def check(
    level: int,
    *,
    issue: str = "",
    needs: str = "",
    adapts: str = "",
    found: Sequence[Mapping[str, object]] = (),
    last: Sequence[Mapping[str, object]] = (),
    printed: Callable[..., None] | None = None,
    **strategies: SearchStrategy[Any],
) -> Callable[..., ScalerCheck]:
    """Make a check of a function of a `ScalerAdapter` and of generated values.

    Args:
        level: Index into `LEVELS`.
        issue: ``owner/repository#number`` on GitHub, or an address.
        needs: Features, separated by spaces.
        adapts: Features without which the check tests less, separated by spaces.
        found: Examples that always run first.
        last: Examples that run after the generated ones, if there are at least `DEFAULT` of these.
        printed: Function that a reproducer contains instead.
        strategies: Strategy of each generated value, by parameter.
    """
    return stating(
        ScalerCheck,
        CHECKS,
        issue=issue,
        level=level,
        label=f"L{level}",
        needs=tuple(needs.split()),
        adapts=tuple(adapts.split()),
        strategies=strategies,
        found=found,
        last=last,
        printed=printed,
    )
