"""To judge a scaler or a loop in a child process: whatever it does there costs one check, and the
others go on.

Theory of operation
-------------------
The child loads what is judged, asks the checks in their order and sends one answer per check. An alarm, which
interrupts Python code and waits for a lock, ends a check that lasts longer than the limit, and the failure tells its
history. What no alarm interrupts is a loop in C or code that catches everything: then the parent kills the child
`GRACE` seconds after the alarm's last. With a second check that does not end the judging ends,
without a verdict. A child that ended, whoever ended it, is replaced by one that begins with the
next check. Where processes are forked the parent warms up, as torch's first step and hypothesis'
first example take seconds each.
"""

import gc
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from ampsim.testing.alarm import AGAIN, WALL, CannotJudgeError, OverdueError, alarm
from ampsim.testing.check import Check, Outcome, Result, described
from ampsim.testing.judge import until_second_hang

GRACE = 4 * AGAIN  # seconds that the parent waits for an answer beyond the limit
# Elsewhere frameworks do not survive a fork, and what is judged must be picklable.
FORKS = sys.platform == "linux"
CONTEXT: Any = multiprocessing.get_context("fork" if FORKS else "spawn")


Begin = Callable[[], Callable[[Sequence[str]], Iterator[Result]]]


class Answer(NamedTuple):
    """An answer of the child: to one check, or whether what is judged could be loaded.

    An error that is the last answer, and not overdue, means that nothing of it can be judged.
    """

    outcome: Outcome
    text: str
    is_last: bool = False  # the child ended with it
    is_overdue: bool = False
    hint: str = ""
    raised: str = ""


def judge_apart(
    begin: Begin, checks: Sequence[Check], *, name: str, limit: float
) -> Iterator[Result]:
    """Ask checks of a scaler, or of a loop, in a child process and yield each one's Result as it
    comes.

    Args:
        begin: loads what is judged, in the child, and returns a function of names that judges it by
            those; picklable where processes are not forked. That it hangs in a check or ends its
            process is never expected.
        checks: in the order in which they are asked.
        name: of what is judged.
        limit: seconds of CPU time per check, and for loading.

    Raises:
        ValueError: it could not be loaded or made, or cannot be judged.
        CannotJudgeError: loading it did not end.
    """
    yield from until_second_hang(_judge_in_children(begin, checks, name, limit))


def _judge_in_children(
    begin: Begin, checks: Sequence[Check], name: str, limit: float
) -> Iterator[Result]:
    """Start a child for the checks that are left, until none is."""
    left = [*checks]
    while left:
        names = [check.name for check in left]
        with child(_serve, begin, names, limit) as (process, answers):
            answer = _next_answer(process, answers, limit)
            _require_loaded(answer, name)
            while left and not answer.is_last:
                answer = _next_answer(process, answers, limit)
                is_refused = answer.outcome == "error" and answer.is_last
                if is_refused and not answer.is_overdue:
                    raise ValueError(answer.text)
                yield _result(left.pop(0), name, answer)


def _require_loaded(answer: Answer, name: str) -> None:
    """Raise an error if what is judged could not be loaded."""
    text = f"loading it {answer.text}"
    if answer.is_overdue:
        raise CannotJudgeError(f"{name} cannot be checked: {text}")
    if answer.outcome != "passed":
        raise ValueError(f"{name}: {text}" if answer.is_last else answer.text)


def _result(check: Check, name: str, answer: Answer) -> Result:
    """Return the result of a check, whose text names the check if it failed."""
    text = answer.text
    if answer.outcome == "failed" and not text.startswith(check.name):
        text = described(check, text)
    return Result(
        check,
        name,
        answer.outcome,
        text,
        answer.is_overdue,
        answer.hint,
        answer.raised,
    )


@contextmanager
def child(
    serve: Callable[..., None], *args: object
) -> Iterator[tuple[BaseProcess, Connection]]:
    """Start a child that calls `serve`, at last with its end of a pipe, and end it whatever it
    does.
    """
    answers, sending = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=serve, args=(*args, sending))
    process.start()
    sending.close()  # so that the child's end is the only one, and its death is seen
    try:
        yield process, answers
    finally:
        process.kill()
        process.join()
        answers.close()


def _next_answer(process: BaseProcess, answers: Connection, limit: float) -> Answer:
    """Return what the child says next, or what became of it."""
    if not answers.poll(WALL * limit + GRACE):
        text = f"did not end within {WALL * limit:g} s, and the time limit cannot interrupt it"
        return Answer("failed", text, is_last=True, is_overdue=True)
    with suppress(EOFError):
        answer: Answer = answers.recv()
        return answer
    process.join()
    code = process.exitcode or 0
    how = (
        f"with exit status {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
    )
    return Answer("failed", f"ended the process {how}", is_last=True)


def _serve(
    begin: Begin, names: Sequence[str], limit: float, sending: Connection
) -> None:
    """Load what is judged and answer for each check, in the child."""
    gc.freeze()  # what is loaded is no garbage, and takes long to look through
    sys.stdout = sys.stderr  # a report may go to the parent's
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends both
    try:
        with alarm(limit):
            judge = begin()
    except (Exception, OverdueError) as error:
        sending.send(
            Answer("failed", str(error), is_overdue=isinstance(error, OverdueError))
        )
        return
    sending.send(Answer("passed", ""))
    left = [*names]
    while left:
        try:
            for result in judge(left[:]):
                sending.send(
                    Answer(
                        result.outcome,
                        result.text,
                        is_last=result.is_overdue,
                        is_overdue=result.is_overdue,
                        hint=result.hint,
                        raised=result.raised,
                    )
                )
                left.pop(0)
                if result.is_overdue:
                    return  # and is ended: a lock may be held indefinitely
        except ValueError as error:
            sending.send(Answer("error", str(error), is_last=True))
            return
        except Exception as error:  # of the judge's own, which is no finding
            text = f"{left.pop(0)} did not run: ampsim raised {type(error).__name__}: {error}; please report this"
            sending.send(Answer("error", text))
