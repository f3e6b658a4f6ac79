"""What asking one law comes to, of whatever is asked: a scaler, a loop, or a peer."""

from collections.abc import Callable

from ampsim.testing.alarm import OverdueError, alarm, place
from ampsim.testing.law import Law, Result, described, settled


class NotApplicableError(Exception):
    """The law speaks of what the target does not have; the text says what."""


def judged(law: Law, target: str, ask: Callable[[], object], reason: str | None, limit: float = 0.0) -> Result:
    """Ask a law, and return its Result.

    Args:
        law: the one that is asked.
        target: the name of what is asked.
        ask: raises BrokenError or RaisedError where the law is broken, NotApplicableError where it says nothing.
        reason: why it is expected to be broken, with a link; None if it is not. That it does not end is never expected.
        limit: seconds; 0 is no limit.
    """
    failure = None
    try:
        with alarm(limit):
            ask()
    except NotApplicableError as error:
        return Result(law, target, "not applicable", str(error))
    except OverdueError as error:
        return Result(law, target, "failed", described(law, str(error), [("where", place(error))]), is_overdue=True)
    except AssertionError as error:
        if isinstance(error.__cause__, OverdueError):
            return Result(law, target, "failed", str(error), is_overdue=True)
        failure = error
    return Result(law, target, *settled(law, failure, reason))
