"""Runs units of work, in this process or in spawned ones, and hands back each result as it ends.

A worker talks to its parent through one pipe and nothing else. If the parent is killed, the pipe closes and
the worker ends at its next message; if a worker is killed, the parent reads end-of-file and says so.
Nothing polls.
"""

import importlib
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

TICK_EVERY = 25  # steps between two messages about a unit under way

OnStep = Callable[[str, int], None]


class Job(NamedTuple):
    """What a worker needs to know; the experiment itself is imported there."""

    stem: str
    config: Any
    unit: Any
    device: str


class Done(NamedTuple):
    """One finished unit."""

    unit: Any
    record: dict[str, Any]
    seconds: float


class Failed(NamedTuple):
    """A unit that raised, or whose process died; the others go on."""

    unit: Any
    reason: str  # one line, with a cure where one is known
    details: str  # the traceback, if there is one


def run_all(jobs: Sequence[Job], processes: int, on_step: OnStep) -> Iterator[Done | Failed]:
    """Yield each unit as it ends, in any order."""
    if processes == 1:
        for job in jobs:
            yield _run(job, on_step)
    else:
        yield from _spawned(list(jobs), min(processes, len(jobs)), on_step)


def _run(job: Job, on_step: OnStep) -> Done | Failed:
    start = time.monotonic()

    def tick(step: int) -> None:
        if step % TICK_EVERY == 0:
            on_step(job.unit.key, step)

    try:
        experiment = importlib.import_module(f"experiments.{job.stem}")
        record = experiment.run(job.config, job.unit, job.device, tick)
    except (BrokenPipeError, ConnectionResetError):
        raise  # the parent is gone
    except Exception as error:
        return Failed(job.unit, _reason(error), traceback.format_exc())
    return Done(job.unit, record, time.monotonic() - start)


def _reason(error: Exception) -> str:
    """What an exception says, in a line; torch's OutOfMemoryError is a RuntimeError with many of them."""
    first = str(error).partition("\n")[0]
    cure = ""
    if isinstance(error, MemoryError) or "out of memory" in first.lower():
        cure = "; expected enough memory: pass --jobs 1, or a smaller batch with --out FILE"
    return f"{type(error).__name__}: {first}{cure}"


def _spawned(jobs: list[Job], processes: int, on_step: OnStep) -> Iterator[Done | Failed]:
    todo = jobs[::-1]
    workers: dict[Connection, tuple[BaseProcess, Job]] = {}
    try:
        for _ in range(processes):
            _start(workers, todo.pop())
        while workers:
            for pipe in [p for p in wait(list(workers)) if isinstance(p, Connection)]:
                message = _receive(pipe, workers)
                if not isinstance(message, (Done, Failed)):
                    on_step(*message)
                    continue
                if pipe not in workers:  # it died, and another takes its place
                    if todo:
                        _start(workers, todo.pop())
                elif todo:
                    workers[pipe] = (workers[pipe][0], todo.pop())
                    pipe.send(workers[pipe][1])
                else:
                    pipe.send(None)
                    workers.pop(pipe)[0].join()
                yield message
    finally:
        for process, _ in workers.values():
            process.kill()
            process.join()


def _start(workers: dict[Connection, tuple[BaseProcess, Job]], job: Job) -> None:
    """A new worker with its first job."""
    context = get_context("spawn")  # fork would copy torch's thread pool in whatever state it is
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # the worker alone holds its end, so its death is our end-of-file
    workers[ours] = (process, job)
    ours.send(job)


def _receive(pipe: Connection, workers: dict[Connection, tuple[BaseProcess, Job]]) -> Any:
    """The worker's next message; if there is none, that its unit failed, and it is taken off the list."""
    try:
        return pipe.recv()
    except EOFError:
        process, job = workers.pop(pipe)
        process.join()
        cure = "; killed, often for lack of memory: pass --jobs 1" if process.exitcode == -signal.SIGKILL else ""
        return Failed(job.unit, f"its process ended with exit code {process.exitcode}{cure}", "")


def _work(pipe: Connection) -> None:
    """A worker's life: jobs in; steps and results out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    try:
        while (job := pipe.recv()) is not None:
            pipe.send(_run(job, lambda unit, step: pipe.send((unit, step))))
    except (EOFError, OSError):
        return  # the parent is gone
