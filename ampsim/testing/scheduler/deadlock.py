"""The report of a run that cannot go on: who waits for what, and who holds it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ampsim.testing.scheduler.task import Task


class StuckError(Exception):
    """The run did not reach its end. The text is a table of all tasks, then the steps taken."""


class DeadlockError(StuckError):
    """No task can go on: each one waits for something that only a waiting task could do."""


class LivelockError(StuckError):
    """The run took ``max_steps`` steps without ending."""


class Step(NamedTuple):
    """One line of a trace: the task that went on and what it did next."""

    task: str
    op: str
    subject: str
    note: str = ""

    def __str__(self) -> str:
        words = f"{self.task}:", self.op, self.subject, self.note
        return " ".join(filter(None, words))


def story(trace: Sequence[Step], last: int = 40) -> str:
    """Write the last steps of a trace, numbered."""
    numbered = [f"{number:5d}  {step}" for number, step in enumerate(trace)]
    return "\n".join(numbered[-last:])


def replay(schedule: Mapping[int, int], faults: Iterable[tuple[int, str]]) -> str:
    """Write the call that gives the same run again."""
    interrupts = dict(faults)
    extra = f", interrupt_at={interrupts}" if interrupts else ""
    return f"replay: run(program, schedule={dict(schedule)}{extra})"


def table(tasks: Iterable["Task"]) -> str:
    """Write one line per task: its state, what it waits for, and what it holds."""
    lines = list[str]()
    for task in tasks:
        held = ", ".join(map(str, task.holds)) or "nothing"
        waits = f"waits for {task.waits_for}, holds {held}"
        lines.append(f"{task.name}: {task.state}, {waits}")
    return "\n".join(lines)
