"""Runs units of work, in this process or in spawned ones, and hands back each result as it ends.

A worker talks to its parent through one pipe and nothing else. If the parent is killed, the pipe closes and
the worker ends at its next message; if a worker is killed, the parent reads end-of-file and says so.
Nothing polls.
"""

import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Self, cast

from ampsim.records import Record
from experiments.runner.experiment import Config, Experiment, Unit

TICK_EVERY = 25  # steps between two messages about a unit under way

OnStep = Callable[[str, int], None]


class Job(NamedTuple):
    """All that a worker needs to know; the experiment itself is imported there."""

    stem: str
    config: Config
    unit: Unit
    device: str


class Done(NamedTuple):
    """One finished unit."""

    unit: Unit
    record: Record
    seconds: float


class Failed(NamedTuple):
    """A unit that raised, or whose process died; the others go on."""

    unit: Unit
    reason: str  # one line, with a cure where one is known
    details: str  # the traceback, if there is one


def run(job: Job, on_step: OnStep) -> Done | Failed:
    """Run one unit in this process; an exception is a result."""
    start = time.monotonic()

    def tick(step: int) -> None:
        if step % TICK_EVERY == 0:
            on_step(job.unit.key, step)

    try:
        experiment = Experiment(job.stem).module
        record = experiment.run(job.config, job.unit.settings, job.unit.seed, job.device, tick)
    except (BrokenPipeError, ConnectionResetError):
        raise  # the parent is gone
    except Exception as error:
        return Failed(job.unit, _reason(error), traceback.format_exc())
    return Done(job.unit, record, time.monotonic() - start)


def _reason(error: Exception) -> str:
    """Return what an exception says, in one line; torch's OutOfMemoryError is a RuntimeError with many."""
    first = str(error).partition("\n")[0]
    cure = ""
    if isinstance(error, MemoryError) or "out of memory" in first.lower():
        cure = "; expected enough memory: pass --jobs 1, or a smaller batch with --out FILE"
    return f"{type(error).__name__}: {first}{cure}"


class Workers:
    """Processes that stay from one experiment to the next: a context that ends them.

    One `run` at a time.
    """

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        self._busy: dict[Connection, Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self._idle, *self._busy.values()):
            worker.process.kill()  # it holds nothing: what it did is with us
            worker.process.join()

    def run(self, jobs: Sequence[Job], processes: int, on_step: OnStep) -> Iterator[Done | Failed]:
        """Yield each unit as it ends, in any order; `processes` of them at a time, with 1 in this process."""
        if processes == 1:
            for job in jobs:
                yield run(job, on_step)
            return
        todo = list(jobs)[::-1]
        while todo or self._busy:
            while todo and len(self._busy) < processes:
                self._give(self._idle.pop() if self._idle else _start(), todo.pop())
            for pipe in wait(list(self._busy)):
                message = self._receive(self._busy[cast("Connection", pipe)])
                if isinstance(message, (Done, Failed)):
                    yield message
                else:
                    on_step(*message)

    def _give(self, worker: "Worker", job: Job) -> None:
        worker.job = job
        worker.pipe.send(job)
        self._busy[worker.pipe] = worker

    def _receive(self, worker: "Worker") -> Any:
        """Return the worker's next message; if it died, that its unit failed, and forget the worker."""
        try:
            message = worker.pipe.recv()
        except EOFError:
            del self._busy[worker.pipe]
            worker.process.join()
            assert worker.job is not None  # noqa: S101 - it was busy
            code = worker.process.exitcode
            cure = "; killed, often for lack of memory: pass --jobs 1" if code == -signal.SIGKILL else ""
            return Failed(worker.job.unit, f"its process ended with exit code {code}{cure}", "")
        if isinstance(message, (Done, Failed)):
            self._idle.append(self._busy.pop(worker.pipe))
        return message


@dataclass
class Worker:
    """A process, our end of its pipe, and the job that it has or had."""

    process: BaseProcess
    pipe: Connection
    job: Job | None = None


def _start() -> Worker:
    context = get_context("spawn")  # fork would copy torch's thread pool in whatever state it is
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # the worker alone holds its end, so its death is our end-of-file
    return Worker(process, ours)


def _work(pipe: Connection) -> None:
    """Receive jobs and send steps and results until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    try:
        while True:
            job = pipe.recv()
            pipe.send(run(job, lambda unit, step: pipe.send((unit, step))))
    except (EOFError, OSError):
        return  # the parent is gone
