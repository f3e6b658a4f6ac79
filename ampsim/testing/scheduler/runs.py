"""Run threads one at a time in an order that a test chooses, and find the order that fails.

A program under test is a function of a `Scheduler`. It starts threads, real ones, through
``c.sync`` or `Scheduler.spawn`; the thread that calls `run` is the task "main". A task can lose
control only at a *switch point*: an operation on a primitive of ``c.sync``, `Scheduler.point`, or a
watched attribute. What stands between two of them is atomic, so **watch what tasks share**.

>>> def program(c):
...     account = {"balance": 0}
...
...     def deposit():
...         seen = account["balance"]
...         c.point("between reading and writing")
...         account["balance"] = seen + 1
...
...     threads = [c.spawn("a", deposit), c.spawn("b", deposit)]
...     for thread in threads:
...         thread.join()
...     assert account["balance"] == 2, "a deposit was lost"
>>> run(program).preemptions  # nobody is preempted: all is well
0
>>> explore(program)  # doctest: +ELLIPSIS
Traceback (most recent call last):
...
ampsim.testing.scheduler.runs.FailingScheduleError: AssertionError in task 'main': a deposit was lost
replay: run(program, schedule={3: 1})
...

A schedule maps steps to choices, each an index into the tasks that can go on; where it says nothing
the running task goes on, and if that cannot, the next one that can. `explore` tries every schedule
with at most so many preemptions, the fewest first: most concurrency bugs need at most two
(Musuvathi and Qadeer, PLDI 2007). Each failure says which schedule reproduces it.

Guarantees: The same program with the same schedule gives the same trace, on any machine, whatever
    the hash seed. Exactly one task runs at a time, and hand-over is by locks: nothing sleeps,
    nothing polls. A run ends, and no thread outlives it, whatever fails; what was watched or
    patched is put back. Ctrl-C or a test runner's timeout ends it at once, and may leave threads
    behind, which are daemons. A timeout is a choice, not a time. A deadlock is found when it
    happens and reported as a table.

Assumes: The program creates its objects from scratch in each run, and is deterministic apart from
    the schedule. It blocks only on ``c.sync``: a real lock held by a waiting task would block the
    run indefinitely. It does not spin: a loop that waits for another task needs ``c.sync.sleep`` or
    a timeout (or: `LivelockError`). ``finally`` and ``except BaseException`` of tasks left over run
    after the run, and may not count on it. A watched attribute is accessed by name: not through the
    instance's ``__dict__`` or ``object.__setattr__``. One run at a time in a process. Python's
    memory model: no reordering below the level of operations.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import Any, TypedDict, Unpack

from ampsim.testing.scheduler import instrument
from ampsim.testing.scheduler import sync as _sync
from ampsim.testing.scheduler.deadlock import Step, StuckError, replay, story
from ampsim.testing.scheduler.task_runner import Chooser, TaskRunner, activate

Program = Callable[["Scheduler"], object]
Schedule = Mapping[int, int] | Chooser
Waiting = list[deque[dict[int, int]]]  # schedules to try, by number of preemptions
KEEP_RUNNING: Mapping[int, int] = MappingProxyType({})


class Scheduler:
    """The argument of a program under test: threads, locks and switch points of one run."""

    sync: ModuleType = _sync
    """`threading` and `queue` under control: Lock, RLock, Condition, Event, Queue, Thread ..."""

    def __init__(self, task_runner: TaskRunner) -> None:
        self._task_runner = task_runner

    def spawn(
        self, name: str, fn: Callable[..., object], *args: object, **kwargs: object
    ) -> _sync.Thread:
        """Start a thread. `name` is what schedules, traces and faults call the task."""
        thread = _sync.Thread(
            target=fn, name=name, args=args, kwargs=kwargs, daemon=False
        )
        thread.start()
        return thread

    def point(self, name: str) -> None:
        """Add a switch point by hand."""
        self._task_runner.switch("point", name)

    def watch(self, owner: type, *names: str) -> None:
        """Make each access to these attributes of a class's instances a switch point until the run
        ends.
        """
        if not names:
            raise TypeError(
                f"watch({owner.__name__}): expected names of attributes, such as *vars(an_instance)"
            )
        for method in instrument.ACCESS:
            access = instrument.switching(self._task_runner, owner, names, method)
            self.replace(owner, method, access)

    def replace(self, owner: object, name: str, value: object) -> None:
        """Set an attribute of a class or module until the run ends."""
        cleanup = self._task_runner.cleanup
        own = vars(owner)
        if name in own:
            cleanup.callback(setattr, owner, name, own[name])
        else:
            cleanup.callback(delattr, owner, name)
        setattr(owner, name, value)

    def patch(self, module: ModuleType) -> tuple[str, ...]:
        """Replace `threading`, `queue` and `time.sleep` in an unmodified module until the run ends.

        Whatever in the module is one of these modules or of their primitives, under any name;
        returns the names replaced. Locks made when the module was imported stay real: patch, then
        reload the module or create the locks again.
        """
        patched = []
        for name, value in [*vars(module).items()]:
            ours = instrument.STAND_INS.get(id(value))
            if ours is not None:
                self.replace(module, name, ours)
                patched.append(name)
        return tuple(patched)


@dataclass(frozen=True)
class Run:
    """The outcome of a run.

    Attributes:
        value: what the program returned; None if it did not come to that.
        schedule: the choices that were not 0, step -> choice: given to `run` they reproduce this
            run.
        trace: one entry per step: who went on, and what it did first.
        errors: task and exception, for each exception that ended a task and was not injected; the
            first one first.
        stuck: a `DeadlockError` or `LivelockError`, if the run ended in one.
        faults: step and task, for each interrupt that met a task alive.
        decisions: step, number of options, and how many of them are no preemption.
    """

    value: Any
    schedule: Mapping[int, int]
    trace: tuple[Step, ...] = field(repr=False)
    errors: tuple[tuple[str, BaseException], ...] = ()
    stuck: StuckError | None = None
    faults: tuple[tuple[int, str], ...] = ()
    decisions: tuple[tuple[int, int, int], ...] = field(default=(), repr=False)

    @property
    def failure(self) -> BaseException | None:
        """What went wrong first, or None."""
        return self.errors[0][1] if self.errors else self.stuck

    @property
    def preemptions(self) -> int:
        """How often a task lost control that could have gone on, or a timeout fired that need not
        have.
        """
        return sum(
            self.schedule.get(step, 0) >= free for step, _, free in self.decisions
        )

    def __str__(self) -> str:
        parts = [replay(self.schedule, self.faults), story(self.trace)]
        if self.failure is not None:
            parts.insert(0, _describe(self))
        return "\n".join(parts)


def _describe(run: Run) -> str:
    if not run.errors:
        return str(run.stuck).partition("\nreplay:")[0]
    task, error = run.errors[0]
    return f"{type(error).__name__} in task {task!r}: {error}"


class FailingScheduleError(AssertionError):
    """An exploration found a schedule that fails. The cause is the failure; `run` has the whole
    trace.
    """

    def __init__(self, failed: Run, error: BaseException) -> None:
        what = f"{type(error).__name__} in the check: {error}"
        if failed.failure is error:
            what = _describe(failed)
        again = replay(failed.schedule, failed.faults)
        super().__init__(f"{what}\n{again}\n{story(failed.trace)}")
        self.run = failed

    @property
    def schedule(self) -> Mapping[int, int]:
        """What to give to `run` to see it again."""
        return self.run.schedule


class Options(TypedDict, total=False):
    """The options of `attempt`; without them a run has at most 10,000 steps and no faults."""

    max_steps: int
    interrupt_at: Mapping[int, str]


def attempt(
    program: Program, schedule: Schedule = KEEP_RUNNING, **options: Unpack[Options]
) -> Run:
    """Run a program under a schedule and return how it went, whatever that is.

    ``interrupt_at={step: task}`` raises KeyboardInterrupt in a task at its next switch point from
    that step on, out of a wait too, but not out of the release of a lock. A task that ends by an
    injected exception has not failed. A task that is not alive at the step is not interrupted.

    Raises only what is not the program's: Ctrl-C, and outcomes such as ``pytest.skip`` in the main
    task.
    """

    def choose(step: int, _: object) -> int:
        return schedule.get(step, 0)  # type: ignore[union-attr]

    is_data = isinstance(schedule, Mapping)
    task_runner = TaskRunner(choose if is_data else schedule, **options)  # type: ignore[arg-type]
    activate(task_runner)
    value = task_runner.perform(lambda: program(Scheduler(task_runner)))
    if task_runner.signal is not None:
        raise task_runner.signal
    return Run(
        value,
        schedule=task_runner.taken,
        trace=tuple(task_runner.steps),
        errors=tuple(task_runner.errors),
        stuck=task_runner.stuck,
        faults=tuple(task_runner.faults),
        decisions=tuple(task_runner.decisions),
    )


def run(
    program: Program, schedule: Schedule = KEEP_RUNNING, **options: Unpack[Options]
) -> Run:
    """Run a program as `attempt` does, and raise what went wrong first.

    That is a task's exception, a `DeadlockError` or a `LivelockError`. The exception carries a note
    with the task and the schedule. Takes the options of `attempt`.
    """
    done = attempt(program, schedule, **options)
    if done.failure is not None:
        if done.errors:
            done.failure.add_note(
                f"in task {done.errors[0][0]!r}; {replay(done.schedule, done.faults)}"
            )
        raise done.failure
    return done


@dataclass(frozen=True)
class Exploration:
    """The outcome of `explore`.

    Attributes:
        by_preemptions: runs, each with another schedule, by number of preemptions from 0.
        exhausted: no schedule within the bound is left; False if `limit` ended the search.
    """

    by_preemptions: tuple[int, ...]
    exhausted: bool


def explore(
    program: Program,
    *,
    preemptions: int = 2,
    limit: int | None = None,
    check: Callable[[Run], object] | None = None,
    **options: Unpack[Options],
) -> Exploration:
    """Run a program under every schedule with at most so many preemptions, the fewest first, each
    once.

    Which task goes on when the running one cannot is no preemption and is always tried; a timeout
    that fires although somebody can go on counts as one (CHESS: Musuvathi and Qadeer, PLDI 2007).
    `check` sees each run that did not fail and raises if it should have. Takes the options of
    `attempt` too.

    Raises `FailingScheduleError` at the first failure, and RuntimeError if the program is not
    deterministic.
    """
    waiting: Waiting = [deque([{}]), *(deque() for _ in range(preemptions))]
    counts = [0] * len(waiting)
    for cost, level in enumerate(waiting):
        while level:
            if limit is not None and sum(counts) >= limit:
                return Exploration(tuple(counts), exhausted=False)
            schedule = level.popleft()  # the shortest first
            done = attempt(program, schedule, **options)
            counts[cost] += 1
            _judge(done, schedule, check)
            _branch(done, schedule, waiting, cost)
    return Exploration(tuple(counts), exhausted=True)


def _judge(
    done: Run, schedule: Mapping[int, int], check: Callable[[Run], object] | None
) -> None:
    if done.schedule != schedule:
        raise RuntimeError(
            f"schedule {schedule} came out as {dict(done.schedule)}: expected a program that depends on "
            "nothing but the schedule; look for time, random numbers, sets, and state kept from run to run"
        )
    if done.failure is not None:
        raise FailingScheduleError(done, done.failure) from done.failure
    if check is not None:
        try:
            check(done)
        except Exception as error:
            raise FailingScheduleError(done, error) from error


def _branch(
    done: Run, schedule: Mapping[int, int], waiting: Waiting, cost: int
) -> None:
    """Queue each schedule that differs from this run first at one later decision."""
    last = max(schedule, default=-1)
    for step, options, free in done.decisions:
        if step <= last:
            continue
        for choice in range(1, options):
            total = cost + (choice >= free)
            if total < len(waiting):
                waiting[total].append({**schedule, step: choice})
