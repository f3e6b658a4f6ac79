"""A check: one law of loss scalers, as something that can be run on any of them.

A check is a small function that drives a scaler through a `Trial` and fails where a law does not hold. What
it takes beside the trial hypothesis draws, always the same for the same check, and shrinks when it fails.
"""

import gc
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from hypothesis.strategies import SearchStrategy, just

from ampsim.testing.kit import examples as drawing
from ampsim.testing.kit.alarm import OverdueError, alarm, place
from ampsim.testing.kit.result import BrokenError, Judged, described, law_of
from ampsim.testing.kit.subject import Subject, as_subject
from ampsim.testing.kit.trial import Bench, Trial

LEVELS = ("state machine", "torch drop-in: calls and errors", "several optimizers", "threads", "checkpoint", "numerics")
EXAMPLES = 60
_TESTING = str(Path(__file__).parents[1])


@dataclass(frozen=True, kw_only=True)
class Check(Judged):
    """One law, as something that can be run on a scaler: its function drives a `Trial`; its level is one of `LEVELS`.

    Attributes:
        needs: names in `subject.FEATURES`: what a scaler may declare not to have, so that the check is not run.
        draws: strategies, by the function's parameters.
        found: what broke a scaler once and is drawn too rarely to wait for; comes first, however few examples are
            drawn.
    """

    needs: tuple[str, ...] = field(default=(), repr=False)
    draws: Mapping[str, SearchStrategy[object]] = field(default_factory=dict, repr=False)
    found: Sequence[Mapping[str, object]] = field(default=(), repr=False)

    def __call__(
        self,
        target: object,
        *,
        examples: int = EXAMPLES,
        schedule: Mapping[int, int] | None = None,
        limit: float | None = None,
    ) -> None:
        """Run this check on a scaler; raise AssertionError, whose text begins with the name, if it fails.

        It is a BrokenError if the law does not hold, a RaisedError if something was raised where nothing may be, and
        neither, so that nobody expects it, if the check did not end within `limit`.

        Args:
            target: as `check_scaler` takes it.
            examples: histories, at most.
            schedule: of threads: the one to run; then the text has every step. None is all.
            limit: seconds; None is `time_limit(examples)`; 0 is no limit, as a debugger wants it. It is kept where
                there are alarms, see `kit.alarm`.
        """
        __tracebackhide__ = True  # for pytest: a failure points at the line that asked
        subject = as_subject(target)
        failed = [Trial(subject, schedule)]

        def example(**drawn: object) -> None:
            trial = Trial(subject, schedule)
            try:
                self.function(trial, **drawn)
            except BaseException:
                failed[:] = [trial]  # the last example that fails is the shortest
                raise

        try:
            with alarm(time_limit(examples) if limit is None else limit):
                drawing.run(example, tuple(self.draws.items()), self.found, examples)
        except BrokenError as error:
            raise BrokenError(self._message(failed[0], error)) from None
        except (Exception, SystemExit, OverdueError) as error:
            message = self._message(failed[0], error)
            kind = AssertionError if isinstance(error, OverdueError) else RaisedError
            raise kind(message) from error.with_traceback(_theirs(error.__traceback__))

    def lacks(self, subject: Subject) -> str:
        """Return which of the features that this check needs a scaler lacks; '' if none."""
        return ", ".join(sorted(subject.lacking.intersection(self.needs)))

    def _message(self, trial: Trial, error: BaseException) -> str:
        ours = isinstance(error, BrokenError | OverdueError)
        seen = str(error) if ours else f"raised {type(error).__name__}: {error}"
        where = [("where", place(error))] if isinstance(error, OverdueError) else []
        replay = [("replay", self._replay(trial))] if trial.failing is not None else []
        return described(self, seen, [*where, *trial.story(), *replay])

    def _replay(self, trial: Trial) -> str:
        """Write the command that runs the schedule that failed."""
        schedule = ",".join(f"{step}:{choice}" for step, choice in (trial.failing or {}).items())
        command = ["ampsim", "check", trial.subject.name, *trial.traits.as_options()]
        return shlex.join([*command, "--check", self.name, "--schedule", schedule])


def time_limit(examples: int) -> float:
    """Return the seconds that a check with so many examples may take."""
    return max(60.0, examples)


def warm_up() -> None:
    """Do what takes seconds in a process when it is first done, and is no scaler's fault.

    Garbage is not collected meanwhile: it would take a third of the time, and the modules that are loaded are none.
    """

    def step(value: float) -> None:
        bench = Bench()
        bench.put(value)
        bench.optimizer.step()

    collects = gc.isenabled()
    gc.disable()
    try:
        drawing.run(step, (("value", just(1.0)),), (), 1)
    finally:
        if collects:
            gc.enable()


class RaisedError(AssertionError):
    """Something was raised where nothing may be; the text begins with the check's name and says what."""


def failure_of(reason: str) -> type[AssertionError]:
    """Return the kind of failure that is expected for a reason: a broken law, or for ``raised ...`` an exception."""
    return RaisedError if reason.startswith("raised ") else BrokenError


def _theirs(calls: TracebackType | None) -> TracebackType | None:
    """Return what follows the kit's last frame in a traceback, or all of it where nothing does."""
    theirs, each = calls, calls
    while each is not None:
        if each.tb_frame.f_code.co_filename.startswith(_TESTING):
            theirs = each.tb_next
        each = each.tb_next
    return theirs or calls


CHECKS: dict[str, Check] = {}  # by name, in the order of levels


def check(
    level: int,
    *,
    issue: str = "",
    needs: str = "",
    found: Sequence[Mapping[str, object]] = (),
    **draws: SearchStrategy[object],
) -> Callable[..., Check]:
    """Make a check of a function of a Trial and of what `draws` draws. Its name and docstring are the law's.

    Args:
        level: index into `LEVELS`.
        issue: ``owner/repository#number`` on GitHub, or an address.
        needs: features, separated by spaces.
        found: examples that are always run, by the function's parameters.
        draws: strategies, by the function's parameters.
    """

    def register(function: Callable[..., None], name: str = "", law: str = "") -> Check:
        made = Check(
            name=name or function.__name__, law=law or law_of(function), function=function, issue=address(issue),
            level=level, group=f"L{level} {LEVELS[level]}", needs=tuple(needs.split()), draws=draws, found=found,
        )  # fmt: skip
        return CHECKS.setdefault(made.name, made)

    return register


def address(issue: str) -> str:
    """Return the address of ``owner/repository#number``, and any other text as it is."""
    return re.sub(r"^([\w.-]+/[\w.-]+)#(\d+)$", r"https://github.com/\1/issues/\2", issue)
