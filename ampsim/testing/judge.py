"""Run one check on a scaler, a loop, or a framework."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ampsim.testing.alarm import OverdueError, alarm, place
from ampsim.testing.check import Check, FailedError, Result, described, settled


class NotApplicableError(Exception):
    """The check does not apply to the target; the text has the reason."""


def until_second_hang(results: Iterable[Result]) -> Iterator[Result]:
    """Yield results of one target; the second check that did not end is an error, and the last."""
    overdue = list[str]()
    for result in results:
        if result.is_overdue:
            overdue.append(result.text.partition("\n")[0])
        if len(overdue) > 1:
            text = f"{result.target} cannot be checked: {'; '.join(overdue)}; the other checks were not run"
            yield replace(result, outcome="error", text=text)
            return
        yield result


def judged(
    check: Check,
    target: str,
    ask: Callable[[], object],
    reason: str | None,
    limit: float = 0.0,
) -> Result:
    """Run a check and return its Result.

    Args:
        check: the check to run.
        target: name of the target.
        ask: runs the check; raises BrokenError or RaisedError if it fails, NotApplicableError to
            skip.
        reason: why a failure is expected, with a link; None if it is not. A timeout is never
            expected.
        limit: seconds; 0 disables the limit.
    """
    failure = None
    try:
        with alarm(limit):
            ask()
    except NotApplicableError as error:
        return Result(check, target, "skipped", str(error))
    except OverdueError as error:
        text = described(check, str(error), [("where", place(error))])
        return Result(check, target, "failed", text, is_overdue=True)
    except AssertionError as error:
        if isinstance(error.__cause__, OverdueError):
            return Result(check, target, "failed", str(error), is_overdue=True)
        failure = error
    outcome, text = settled(check, failure, reason)
    if outcome == "failed" and isinstance(failure, FailedError):
        return Result(
            check, target, outcome, text, hint=failure.hint, raised=failure.raised
        )
    return Result(check, target, outcome, text)
