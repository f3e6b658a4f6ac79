"""To judge a scaler in a child process: whatever it does there costs one check, and the others go on.

Theory of operation
-------------------
The child loads the scaler, runs the checks in their order and sends one answer per check. An alarm, which interrupts
Python code and waits for a lock, ends a check that lasts longer than the limit, and the failure tells its history.
What no alarm interrupts is a loop in C or code that catches everything: then the parent kills the child `GRACE`
seconds later. A child that ended, whoever ended it, is replaced by one that begins with the next check. Where
processes are forked the parent warms up, as torch's first step and hypothesis' first example take seconds each.
"""

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from ampsim.testing.kit.alarm import AGAIN, OverdueError, alarm
from ampsim.testing.kit.check import Check, warm_up
from ampsim.testing.kit.judge import judge
from ampsim.testing.kit.result import Outcome, Result
from ampsim.testing.kit.subject import Subject

GRACE = 4 * AGAIN  # seconds that the parent waits for an answer beyond the limit
_FORKS = sys.platform == "linux"  # elsewhere frameworks do not survive a fork, and what is judged must be picklable
CONTEXT: Any = multiprocessing.get_context("fork" if _FORKS else "spawn")


class Answer(NamedTuple):
    """An answer of the child: to one check, or whether the scaler could be loaded."""

    outcome: Outcome
    text: str
    is_last: bool = False  # the child ended with it


def judge_apart(
    find: Callable[[], Subject],
    checks: Sequence[Check],
    *,
    name: str,
    examples: int,
    expected: Mapping[str, str],
    limit: float,
) -> Iterator[Result]:
    """Run checks in a child process and yield each one's Result as it comes.

    Args:
        find: returns the scaler, in the child; picklable where processes are not forked.
        checks: in the order in which they are run.
        name: of the scaler.
        examples: histories per check, at most.
        expected: name of a check -> reason. That a check hangs or ends its process is never expected.
        limit: seconds per check, and for loading the scaler.

    Raises:
        ValueError: the scaler could not be loaded or made.
    """
    left = [*checks]
    if _FORKS:
        warm_up()
    while left:
        with _child(find, left, examples, expected, limit) as (process, answers):
            loaded = _next_answer(process, answers, limit)
            if loaded.outcome != "passed":
                raise ValueError(f"{name}: loading it {loaded.text}" if loaded.is_last else loaded.text)
            ended = False
            while left and not ended:
                outcome, text, ended = _next_answer(process, answers, limit)
                check = left.pop(0)
                told = text.startswith(check.name) or outcome != "failed"
                yield Result(check, name, outcome, text if told else check.describe(text))


@contextmanager
def _child(
    find: Callable[[], Subject], checks: Sequence[Check], examples: int, expected: Mapping[str, str], limit: float
) -> Iterator[tuple[BaseProcess, Connection]]:
    """Start a child, and end it whatever it does."""
    answers, mouth = CONTEXT.Pipe(duplex=False)
    names = [check.name for check in checks]
    process = CONTEXT.Process(target=_serve, args=(find, names, examples, dict(expected), limit, mouth))
    process.start()
    mouth.close()  # so that the child's end is the only one, and its death is seen
    try:
        yield process, answers
    finally:
        process.kill()
        process.join()
        answers.close()


def _next_answer(process: BaseProcess, answers: Connection, limit: float) -> Answer:
    """Return what the child says next, or what became of it."""
    if not answers.poll(limit + GRACE):
        return Answer("failed", f"did not end within {limit:g} s, and no alarm interrupts it", is_last=True)
    with suppress(EOFError):
        answer: Answer = answers.recv()
        return answer
    process.join()
    code = process.exitcode or 0
    how = f"with exit status {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
    return Answer("failed", f"ended the process {how}", is_last=True)


def _serve(
    find: Callable[[], Subject],
    names: Sequence[str],
    examples: int,
    expected: Mapping[str, str],
    limit: float,
    mouth: Connection,
) -> None:
    """Load the scaler and answer for each check, in the child."""
    from ampsim.testing.kit.checks import CHECKS

    gc.freeze()  # what is loaded is no garbage, and takes long to look through
    sys.stdout = sys.stderr  # a report may go to the parent's
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends both
    try:
        with alarm(limit):
            subject = find()
            subject.try_out()  # judge() would do so, when the first check is under way
    except (Exception, SystemExit, OverdueError) as error:
        mouth.send(Answer("failed", str(error), isinstance(error, OverdueError)))
        return
    mouth.send(Answer("passed", ""))
    for result in judge(subject, [CHECKS[name] for name in names], examples=examples, expected=expected, limit=limit):
        mouth.send(Answer(result.outcome, result.text, result.is_overdue))
        if result.is_overdue:
            os._exit(0)  # a lock may be held for ever
