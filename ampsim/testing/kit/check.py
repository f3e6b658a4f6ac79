"""A check: one law of loss scalers, as something that can be run on any of them.

A check is a small function that drives a scaler through a `Trial` and fails where a law does not hold. What
it takes beside the trial hypothesis draws, always the same for the same check, and shrinks when it fails.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import example as always
from hypothesis.strategies import SearchStrategy

from ampsim.testing.kit.subject import Subject, as_subject
from ampsim.testing.kit.trial import BrokenError, Trial

LEVELS = ("state machine", "torch drop-in: calls and errors", "several optimizers", "threads", "checkpoint", "numerics")
EXAMPLES = 60
SEED = 1  # any number: without one, hypothesis makes it of this file's text, and an edit would draw other examples
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
    """Names in `subject.FEATURES`: what a scaler may declare not to have, so that the check is not run."""
    draws: Mapping[str, SearchStrategy[object]] | None = field(default=None, repr=False)
    found: Sequence[Mapping[str, object]] = field(default=(), repr=False)
    """What broke a scaler once and is drawn too rarely to wait for; comes first, however few examples are drawn."""

    def __call__(self, target: object, *, examples: int = EXAMPLES) -> None:
        """Run this check on a scaler; raise AssertionError, whose text begins with the name, if it fails.

        It is a BrokenError if the law does not hold, and a RaisedError if something was raised where nothing may be.
        """
        subject = as_subject(target)
        trials = [Trial(subject)]

        def example(**drawn: object) -> None:
            trials[:] = [Trial(subject)]  # the last example that hypothesis runs is the shortest
            self.function(trials[0], **drawn)

        test = example
        if self.draws:
            test = seed(SEED)(settings(SETTINGS, max_examples=examples)(given(**self.draws)(example)))
            for drawn in self.found:
                test = always(**drawn)(test)
        try:
            test()
        except BrokenError as error:
            raise BrokenError(self._message(trials[0], str(error))) from None
        except Exception as error:
            raise RaisedError(self._message(trials[0], f"raised {type(error).__name__}: {error}")) from error

    def lacks(self, subject: Subject) -> str:
        """Return which of the features that this check needs a scaler lacks; '' if none."""
        return ", ".join(sorted(subject.lacking.intersection(self.needs)))

    def _message(self, trial: Trial, what: str) -> str:
        lines = [("law", self.law), *trial.story(), ("issue", self.issue)]
        return "\n".join([f"{self.name}: {what}", *(f"  {label:8} {text}" for label, text in lines if text)])


class RaisedError(AssertionError):
    """Something was raised where nothing may be; the text begins with the check's name and says what."""


def failure_of(reason: str) -> type[AssertionError]:
    """Return the kind of failure that is expected for a reason: a broken law, or for ``raised ...`` an exception."""
    return RaisedError if reason.startswith("raised ") else BrokenError


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
        name, law = name or function.__name__, law or inspect.getdoc(function) or ""
        first = law.split("\n\n")[0].replace("\n", " ")
        need = tuple(needs.split())
        CHECKS[name] = Check(name, level, first, function, address(issue), need, draws, found)
        return CHECKS[name]

    return register


def address(issue: str) -> str:
    """Return the address of ``owner/repository#number``, and any other text as it is."""
    return re.sub(r"^([\w.-]+/[\w.-]+)#(\d+)$", r"https://github.com/\1/issues/\2", issue)
