"""A check of scalers. Hypothesis generates the examples, always the same, and shrinks failures."""

import gc
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any

from hypothesis.strategies import SearchStrategy

from ampsim.core.extras import needing
from ampsim.testing import examples as drawing
from ampsim.testing.alarm import OverdueError, alarm, place
from ampsim.testing.check import BrokenError, Check, RaisedError, described, stating
from ampsim.testing.judge import NotApplicableError, given_up
from ampsim.testing.kit.choices import choice
from ampsim.testing.kit.example import Example, readable
from ampsim.testing.kit.found_inf_adapter import FoundInfAdapter
from ampsim.testing.kit.subject import Subject, as_subject

LEVELS = (
    "state machine",
    "torch drop-in: calls and errors",
    "several optimizers",
    "threads",
    "checkpoint",
    "numerics",
)
EXAMPLES = 60
_TESTING = str(Path(__file__).parents[1])


@dataclass(frozen=True, kw_only=True)
class ScalerCheck(Check):
    """A check of scalers; its level is an index into `LEVELS`."""

    def __call__(
        self,
        target: object,
        *,
        examples: int = EXAMPLES,
        schedule: Mapping[int, int] | None = None,
        limit: float | None = None,
    ) -> None:
        """Run this check on a scaler.

        Args:
            target: scaler, as `check_scaler` takes it.
            examples: maximum number of generated overflow sequences.
            schedule: thread schedule to run, with every step in the text; None runs all schedules.
            limit: CPU time in seconds; None for `time_limit(examples)`, 0 for no limit, e.g. in a debugger. See
                `ampsim.testing.alarm` for where limits apply.

        Raises:
            BrokenError: The property does not hold. The text starts with the name of the check.
            RaisedError: The scaler raised an unexpected exception.
            AssertionError: The check did not end within `limit`. This is never an expected failure.
            CannotJudgeError: A second check of this scaler, or an import in it, did not end.
        """
        __tracebackhide__ = True  # for pytest: a failure points at the line that asked
        subject = as_subject(target)
        if missing := self.lacks(subject):
            raise NotApplicableError(f"unsupported: {missing}")
        if not __debug__:
            raise RuntimeError(
                "checks use assert statements, which python -O removes: run without -O"
            )
        if len(subject.overdue) > 1:
            raise given_up(subject.name, subject.overdue)
        failed, seen = self.shortest(subject, examples, schedule, limit)
        if failed is None:
            return
        if isinstance(seen, OverdueError):
            subject.overdue.append(f"{self.name}: {seen}, in {place(seen)}")
            if seen.imports or len(subject.overdue) > 1:
                raise given_up(subject.name, subject.overdue) from None
            raise AssertionError(self.message(failed, seen)) from seen.with_traceback(
                _theirs(seen.__traceback__)
            )
        message = self.message(failed, seen, self._choices(subject, seen, examples, limit))
        if isinstance(seen, BrokenError):
            raise BrokenError(message) from None
        raise RaisedError(message) from seen.with_traceback(_theirs(seen.__traceback__))

    def _choices(
        self, subject: Subject, seen: BaseException, examples: int, limit: float | None
    ) -> list[tuple[str, str]]:
        with suppress(OverdueError), alarm(time_limit(examples) if limit is None else limit):
            return choice(self, subject, seen, examples)
        return []

    def shortest(
        self,
        subject: Subject,
        examples: int,
        schedule: Mapping[int, int] | None = None,
        limit: float | None = None,
    ) -> "tuple[Example | None, BaseException]":
        """Return the shortest example that breaks this check, and what it raised; None if the check holds."""
        warm_up()
        last, seen = Example(subject, self, schedule), None

        def example(**drawn: Any) -> None:
            nonlocal last, seen
            each = Example(subject, self, schedule)
            try:
                broken = _broken(each, drawn)
            except BaseException as error:
                if seen is None or not isinstance(error, OverdueError):
                    last, seen = each, error  # the last example that fails is the shortest
                raise
            if broken:
                last, seen = each, BrokenError(broken)
                raise seen  # always here, so that hypothesis takes all for one failure

        try:
            with alarm(time_limit(examples) if limit is None else limit):
                last_ones = self.last if examples >= EXAMPLES else ()
                drawing.run(example, tuple(self.draws.items()), self.found, examples, last_ones)
        except (Exception, SystemExit, OverdueError) as error:
            return last, (seen or error) if isinstance(error, OverdueError) else error
        return None, BrokenError()

    def lacks(self, subject: Subject) -> str:
        """Return which of the features that this check needs a scaler lacks; '' if none."""
        return ", ".join(sorted(subject.lacking.intersection(self.needs)))

    def message(
        self, example: Example, error: BaseException, choices: Sequence[tuple[str, str]] = ()
    ) -> str:
        """Write what an example showed under this check's name, with lines of choices and its story."""
        ours = isinstance(error, BrokenError | OverdueError)
        seen = readable(str(error)) if ours else f"raised {type(error).__name__}: {error}"
        where = [("where", place(error))] if isinstance(error, OverdueError) else []
        replay = [("replay", self._replay(example))] if example.failing is not None else []
        return described(self, seen, [*choices, *where, *example.story(), *replay])

    def _replay(self, example: Example) -> str:
        """Write the command that runs the schedule that failed."""
        schedule = ",".join(f"{step}:{choice}" for step, choice in (example.failing or {}).items())
        command = ["ampsim", "check", example.subject.name, *example.traits.as_options()]
        return shlex.join([*command, "--check", self.name, "--schedule", schedule])


def _broken(example: Example, drawn: Mapping[str, Any]) -> str:
    """Return what a check's own assertion says; "" if it holds. What a scaler raises, an assertion too, is raised."""
    try:
        example.judge(**drawn)
    except AssertionError as error:
        calls = error.__traceback__
        while calls is not None and calls.tb_next is not None:
            calls = calls.tb_next
        if calls is None or not calls.tb_frame.f_code.co_filename.startswith(_TESTING):
            raise
        return str(error) or "the property does not hold"
    return ""


def time_limit(examples: int) -> float:
    """Return the time limit in seconds of a check with this number of examples."""
    return max(60.0, examples)


def _theirs(calls: TracebackType | None) -> TracebackType | None:
    """Return what follows the kit's last frame in a traceback, or all of it where nothing does."""
    theirs, each = calls, calls
    while each is not None:
        if each.tb_frame.f_code.co_filename.startswith(_TESTING):
            theirs = each.tb_next
        each = each.tb_next
    return theirs or calls


CHECKS: dict[str, ScalerCheck] = {}  # by name, in the order of levels


@cache
def warm_up() -> None:
    """Do what takes seconds in a process when it is first done, and is no scaler's fault.

    Garbage is not collected meanwhile: it would take a third of the time, and the modules that are loaded are none.
    """
    with needing():
        import torch  # noqa: F401  no check can be asked without it
    collects, check = gc.isenabled(), CHECKS["finite_step_is_taken"]
    still = Subject(lambda rule: FoundInfAdapter(lambda: 1.0, lambda found_inf: None))
    gc.disable()
    try:
        drawing.run(Example(still, check).judge, tuple(check.draws.items()), (), 1)
    finally:
        if collects:
            gc.enable()


def check(
    level: int,
    *,
    issue: str = "",
    needs: str = "",
    found: Sequence[Mapping[str, object]] = (),
    last: Sequence[Mapping[str, object]] = (),
    proof: Callable[..., None] | None = None,
    since: str = "",
    **given: "SearchStrategy[object] | Callable[..., object]",
) -> Callable[..., ScalerCheck]:
    """Make a check of a function; what it takes its parameters' names say.

    Args:
        level: index into `LEVELS`.
        issue: ``owner/repository#number`` on GitHub, or an address.
        needs: features, separated by spaces.
        found: examples that are always run, by the function's parameters.
        last: examples that are run behind those that are drawn, and not where fewer than `EXAMPLES` are.
        proof: printed in the function's place.
        since: the version of the checks that it is new in.
        given: by parameter, a strategy, or a function of `Traits` and of what is drawn.
    """
    return stating(
        ScalerCheck, CHECKS, issue=issue, level=level, group=f"L{level} {LEVELS[level]}", needs=tuple(needs.split()),
        draws={key: each for key, each in given.items() if isinstance(each, SearchStrategy)},
        derives={key: each for key, each in given.items() if isinstance(each, FunctionType)},
        found=found, last=last, proof=proof, since=since,
    )  # fmt: skip
