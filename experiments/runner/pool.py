"""Runs units of work, in this process or in spawned ones, and hands back each result as it ends.

A worker talks to its parent through one pipe and nothing else. If the parent is killed, the pipe
closes and the worker ends at its next message; if a worker is killed, the parent reads end-of-file
and says so. Nothing polls.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple, Self, cast

from ampsim.core.json_lines import Record
from experiments import KERNELS, emulation
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
    seconds: float  # of CPU time, that of processes which the unit started and waited for included


class Failed(NamedTuple):
    """A unit that raised, or whose process ended; the others continue."""

    unit: Unit
    reason: str  # one line, with a fix if one is known
    details: str = ""  # the traceback, if there is one


Ended = Done | Failed


def run(job: Job, on_step: OnStep) -> Ended:
    """Run one unit in this process; an exception is a result."""
    start = cpu_seconds()

    def tick(step: int) -> None:
        if step % TICK_EVERY == 0:
            on_step(job.unit.key, step)

    try:
        experiment = Experiment(job.stem).module
        if "torch" in sys.modules:
            emulation.speed_up_halves()
        record = experiment.run(
            job.config, job.unit.settings, job.unit.seed, job.device, tick
        )
    except (BrokenPipeError, ConnectionResetError):
        raise  # the parent is gone
    except Exception as error:
        return Failed(job.unit, _reason(error), traceback.format_exc())
    return Done(job.unit, record, cpu_seconds() - start)


def cpu_seconds() -> float:
    """Return the CPU time of this process so far, and of those that it started and waited for."""
    return sum(os.times()[:4])


def _reason(error: Exception) -> str:
    """Return what an exception says, in one line; torch's OutOfMemoryError is a RuntimeError with
    many.
    """
    first = str(error).partition("\n")[0]
    no_room = isinstance(error, MemoryError) or "out of memory" in first.lower()
    advice = (
        "; not enough memory: pass --jobs 1, or a smaller batch with --out FILE"
        if no_room
        else ""
    )
    return f"{type(error).__name__}: {first}{advice}"


@dataclass(frozen=True)
class Worker:
    """A process, and our end of its pipe."""

    process: BaseProcess
    pipe: Connection

    @classmethod
    def start(cls) -> Self:
        """Return a new one."""
        context = get_context(
            "spawn"
        )  # fork would copy torch's thread pool in whatever state it is
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()  # the worker alone holds its end, so its death is our end-of-file
        return cls(process, ours)

    def end(self) -> None:
        """Kill the process, which holds nothing: what it did is with us."""
        self.process.kill()
        self.process.join()

    def receive(self, unit: Unit) -> Ended | tuple[str, int]:
        """Return the next message about a unit: a step, or how it ended; if the process died, that
        it failed.
        """
        try:
            return cast("Ended | tuple[str, int]", self.pipe.recv())
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            advice = (
                "; it was killed, often for lack of memory: pass --jobs 1"
                if code == -signal.SIGKILL
                else ""
            )
            return Failed(unit, f"its process ended with exit code {code}{advice}")


class Workers:
    """Processes that stay from one experiment to the next: a context that ends them.

    One `run` at a time.
    """

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        self._busy: dict[Connection, tuple[Worker, Unit]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._idle:
            worker.end()

    def run(
        self, jobs: Sequence[Job], processes: int, on_step: OnStep
    ) -> Iterator[Ended]:
        """Yield each unit as it ends, in any order; `processes` of them at a time, with 1 in this
        process.
        """
        if processes == 1:
            yield from (run(job, on_step) for job in jobs)
            return
        todo = list(jobs)[::-1]
        try:
            while todo or self._busy:
                while todo and len(self._busy) < processes:
                    worker, job = (
                        self._idle.pop() if self._idle else Worker.start(),
                        todo.pop(),
                    )
                    worker.pipe.send(job)
                    self._busy[worker.pipe] = worker, job.unit
                for pipe in wait(list(self._busy)):
                    worker, unit = self._busy[cast("Connection", pipe)]
                    message = worker.receive(unit)
                    if not isinstance(message, Ended):
                        on_step(*message)
                        continue
                    del self._busy[worker.pipe]
                    if isinstance(message, Done):
                        self._idle.append(worker)
                    else:  # an error of CUDA stays with its process
                        worker.end()
                    yield message
        finally:  # an interrupted run has units under way
            for worker, _ in self._busy.values():
                worker.end()
            self._busy.clear()


@contextmanager
def kernels(*, own: bool) -> Iterator[None]:
    """Have workers that start now use the kernels of this processor, as its users do, where `own`:
    time is measured.
    """
    before = dict(os.environ)
    if own and os.environ.get("AMPSIM_KERNELS") != "own":
        os.environ["AMPSIM_KERNELS"] = "own"
        for name in KERNELS:
            os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def _work(pipe: Connection) -> None:
    """Receive jobs and send steps and results until the parent is gone."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the parent decides
    try:
        while True:
            pipe.send(run(pipe.recv(), lambda unit, step: pipe.send((unit, step))))
    except (EOFError, OSError):
        return  # the parent is gone
