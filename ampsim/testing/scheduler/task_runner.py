"""Runs real threads one at a time, and takes each decision who goes on from a schedule.

Used by `ampsim.testing.scheduler`, whose names are public.

Theory of operation
-------------------
A *task* is a real thread with a lock of its own, its ``baton``, which is kept locked. A task runs only
after somebody released its baton, and the one who did then waits for its own: so one task runs at a time,
and the order is not up to the operating system.

Before each visible operation a task calls `TaskRunner.switch`, which says what the task is about to
do and, if it may have to wait, a predicate that tells whether it can. That is one **step**.
`_decide` lists who can go on: the task itself first, then the others in rotation, then those in a
timed wait whose timeout may fire. The schedule picks one of them; 0 is the first. The operation
takes place when the task is picked, and everything up to its next switch belongs to the same step.

The run is over when all tasks that are no daemons have ended, when nobody can go on
(`DeadlockError`), or after ``max_steps`` (`LivelockError`). Then the main task, which is the
calling thread, gives the baton to each task left over in turn; `switch` raises `AbandonedError` in
it, and its thread ends. No thread outlives its run.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType

from ampsim.testing.scheduler.deadlock import (
    DeadlockError,
    LivelockError,
    Step,
    StuckError,
    replay,
    story,
    table,
)
from ampsim.testing.scheduler.task import AbandonedError, Body, Ready, Task

Chooser = Callable[[int, Sequence[str]], int]
"""From a step and the names of those who can go on to the index of the one who does."""
NO_FAULTS: Mapping[int, str] = MappingProxyType({})


class TaskRunner:
    """One run: who holds the baton, what was decided, and how it ended. It is used once."""

    def __init__(
        self,
        choose: Chooser,
        max_steps: int = 10_000,
        interrupt_at: Mapping[int, str] = NO_FAULTS,
    ) -> None:
        self.choose = choose
        self.max_steps = max_steps
        self.interrupt_at = interrupt_at
        self.tasks: list[Task] = []
        self.running: Task  # holds the baton; `perform` sets it
        self.live = 0  # tasks that the run waits for: neither daemon nor finished
        self.steps: list[Step] = []
        # Step, options, and how many of them cost nothing.
        self.decisions: list[tuple[int, int, int]] = []
        self.taken: dict[int, int] = {}  # the choices that were not 0
        self.errors: list[tuple[str, BaseException]] = []
        self.faults: list[tuple[int, str]] = []  # step, and the task interrupted there
        self.stuck: StuckError | None = None
        # Ctrl-C and its like, met in the calling thread.
        self.signal: BaseException | None = None
        self.over = False  # the run has ended; what is left is being unwound
        self.closed = False  # no task is left
        # It had to be left in the middle; a task that never comes to a switch point stays.
        self.hung = False
        self.cleanup = ExitStack()
        self._labels = Counter[str]()

    def label(self, kind: str) -> str:
        """Return a name for a new primitive, the same in every run: the first Lock made is Lock-1."""
        self._labels[kind] += 1
        return f"{kind}-{self._labels[kind]}"

    # ---- what tasks call

    def add(self, name: str, body: Body, *, daemon: bool = False) -> Task:
        """Add a task that can go on; its thread is made when it is first picked."""
        if self.closed:
            raise RuntimeError(f"cannot start {name!r}: the run is over")
        if self.over:
            raise AbandonedError
        names = {task.name for task in self.tasks}
        unique = name
        count = 1
        while unique in names:
            count += 1
            unique = f"{name}-{count}"
        task = Task(len(self.tasks), unique, body, daemon=daemon)
        self.tasks.append(task)
        self.live += not daemon
        return task

    def switch(
        self,
        op: str,
        subject: object = "",
        ready: Ready = None,
        *,
        timed: bool = False,
    ) -> bool:
        """Wait until an operation is to take place; return True, or False if its timeout fired."""
        if self.over:
            return self._after(op, subject, ready, timed)
        me = self.running
        me.op = op
        me.subject = subject
        me.ready = ready
        me.timed = timed
        chosen = self._decide(me)
        if chosen is not me:
            self._hand_over(chosen, me)
        if self.over:
            raise AbandonedError
        me.ready = None
        if me.pending is not None and op != "release":
            me.injected = me.pending
            me.pending = None
            raise me.injected
        return not me.fired

    def _after(self, op: str, subject: object, ready: Ready, timed: bool) -> bool:
        """Perform an operation after the end: of a task that unwinds, or of whoever inspects the
        result.
        """
        if not self.closed:
            raise AbandonedError
        if ready is None or ready():
            return True
        if not timed:
            raise DeadlockError(
                f"{op} {subject} would wait indefinitely: the run is over"
            )
        return False

    # ---- decisions

    def _decide(self, me: Task) -> Task:
        """Return the task that goes on; the main task, with `over` set, if the run ends here."""
        try:
            return self._pick(me, len(self.steps))
        except Exception as error:  # noqa: BLE001, RUF100  a broken schedule; no task is to blame
            self.errors.append(("the schedule", error))
            return self._end(None)

    def _pick(self, me: Task, step: int) -> Task:
        self._interrupt(step)
        if self.signal is not None or not self.live:
            return self._end(None)
        if step >= self.max_steps:
            text = self._report(f"Livelock: no end after {step} steps")
            return self._end(LivelockError(text))
        ready, timed = self._options(me)
        options = ready + timed
        if not options:
            text = self._report(f"Deadlock at step {step}: no task can go on")
            return self._end(DeadlockError(text))
        choice = self._choice(me, step, ready, timed) if len(options) > 1 else 0
        chosen = options[choice]
        chosen.fired = choice >= len(ready)
        note = "timed out" if chosen.fired else ""
        # `with lock:` lets go whatever comes.
        if chosen.pending is not None and chosen.op != "release":
            note = note or "interrupted"
        self.steps.append(Step(chosen.name, chosen.op, str(chosen.subject), note))
        return chosen

    def _options(self, me: Task) -> tuple[list[Task], list[Task]]:
        """Return who can go on, `me` first and the others in rotation, and who could if its timeout
        fired.
        """
        ready: list[Task] = []
        timed: list[Task] = []
        after = me.index + 1
        for task in self.tasks[after:] + self.tasks[:after]:
            if task.finished:
                continue
            if task.ready is None or task.pending is not None or task.ready():
                ready.append(task)
            elif task.timed:
                timed.append(task)
        if len(ready) > 1 and ready[-1] is me:
            ready.insert(0, ready.pop())
        return ready, timed

    def _choice(self, me: Task, step: int, ready: list[Task], timed: list[Task]) -> int:
        names = [task.name for task in ready]
        names += [f"{task.name} timeout" for task in timed]
        choice = self.choose(step, names)
        if choice:
            # Any other positive number still means "not the first".
            choice = 1 + (choice - 1) % (len(names) - 1)
            self.taken[step] = choice
        is_free = bool(ready) and ready[0] is me
        free = 1 if is_free else len(ready) or len(timed)
        self.decisions.append((step, len(names), free))
        return choice

    def _interrupt(self, step: int) -> None:
        for task in self.tasks:
            if self.interrupt_at.get(step) == task.name and not task.finished:
                self.faults.append((step, task.name))
                task.pending = KeyboardInterrupt(f"injected at step {step}")

    def _end(self, stuck: StuckError | None) -> Task:
        self.over = True
        self.stuck = stuck
        return self.tasks[0]

    def _report(self, title: str) -> str:
        parts = title, table(self.tasks), replay(self.taken, self.faults)
        return "\n".join([*parts, story(self.steps)])

    # ---- threads

    def perform(self, program: Body) -> object:
        """Run `program` as the task "main" in the calling thread, and all it starts, to the end."""
        main = self.running = self.add("main", program)
        with self.cleanup:
            value = self._live(main)
            for task in self.tasks[1:]:
                if task.thread is not None and not task.finished and not self.hung:
                    self._hand_over(task, main)
            for task in self.tasks[1:]:
                if task.thread is not None and not self.hung:
                    task.thread.join()
            self.running = main
            self.closed = not self.hung
        return value

    def _live(self, task: Task) -> object:
        """Run a task from its first step to its end, in its own thread."""
        value = None
        try:
            value = task.body()
        except AbandonedError:
            pass
        except BaseException as error:  # noqa: BLE001, RUF100  delivered with the result
            self._failed(task, error)
        self._retire(task)
        return value

    def _failed(self, task: Task, error: BaseException) -> None:
        if self.over or error is task.injected:
            return
        if task.index == 0 and not isinstance(error, Exception):
            # Ctrl-C, pytest.skip, hypothesis that stops a test: not for us.
            self.signal = error
        elif not isinstance(error, SystemExit):  # which threading ignores as well
            self.errors.append((task.name, error))

    def _retire(self, task: Task) -> None:
        """Give the baton on for the last time; the main task gets it back when the run is over."""
        task.finished = True
        if self.over:
            if task.index and not self.hung:
                self.tasks[0].baton.release()
            return
        self.live -= not task.daemon
        task.op = "end"
        task.subject = ""
        chosen = self._decide(task)
        if chosen is not task:
            self._pass_to(chosen) if task.index else self._hand_over(chosen, task)

    def _pass_to(self, task: Task) -> None:
        self.running = task
        if task.index and task.thread is None:
            task.thread = threading.Thread(
                target=self._live, args=(task,), name=task.name, daemon=True
            )
            task.thread.start()
        else:
            task.baton.release()

    def _hand_over(self, chosen: Task, me: Task) -> None:
        """Give the baton to another task and wait to get it back."""
        try:
            self._pass_to(chosen)
            me.baton.acquire()
        except BaseException as error:  # noqa: BLE001, RUF100  a test runner's timeout, Ctrl-C, no more threads
            # Wait for nobody: who runs ends at a switch point.
            self.signal = error
            self.over = True
            self.hung = True
            if me.index:
                self.tasks[0].baton.release()


_active: list[TaskRunner] = []  # the run in progress: none or one


def active() -> TaskRunner:
    """Return the run in progress."""
    if not _active:
        raise RuntimeError(
            "no run in progress: make locks and threads inside the program given to scheduler.run"
        )
    return _active[0]


def activate(task_runner: TaskRunner) -> None:
    """Make this the run in progress until it is cleaned up. Runs do not nest."""
    if _active:
        raise RuntimeError("a run is in progress: one run at a time in a process")
    _active.append(task_runner)
    task_runner.cleanup.callback(_active.clear)
