"""What asking one check comes to, of whatever is asked: a scaler, a loop, or a framework."""

from collections.abc import Callable, Sequence

from ampsim.testing.alarm import CannotJudgeError, OverdueError, alarm, place
from ampsim.testing.check import Check, Result, described, settled


class NotApplicableError(Exception):
    """The check speaks of what the target does not have; the text says what."""


def given_up(name: str, overdue: Sequence[str]) -> CannotJudgeError:
    """Return the error that ends the judging of a target, by the checks that did not end."""
    return CannotJudgeError(
        f"{name} cannot be judged: {'; '.join(overdue)}; no other check is asked"
    )


def judged(
    check: Check, target: str, ask: Callable[[], object], reason: str | None, limit: float = 0.0
) -> Result:
    """Ask a check, and return its Result.

    Args:
        check: the one that is asked.
        target: the name of what is asked.
        ask: raises BrokenError or RaisedError where the check is broken, NotApplicableError where it says nothing.
        reason: why it is expected to be broken, with a link; None if it is not. That it does not end is never expected.
        limit: seconds; 0 is no limit.
    """
    failure = None
    try:
        with alarm(limit):
            ask()
    except NotApplicableError as error:
        return Result(check, target, "skipped", str(error))
    except CannotJudgeError as error:
        return Result(check, target, "error", str(error), is_overdue=True)
    except OverdueError as error:
        return Result(
            check,
            target,
            "failed",
            described(check, str(error), [("where", place(error))]),
            is_overdue=True,
        )
    except AssertionError as error:
        if isinstance(error.__cause__, OverdueError):
            return Result(check, target, "failed", str(error), is_overdue=True)
        failure = error
    return Result(check, target, *settled(check, failure, reason))
