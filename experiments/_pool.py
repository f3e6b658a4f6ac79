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


class UnitFailed(RuntimeError):  # noqa: N818 - says what happened
    """A unit raised, or its process died; the units before it are kept."""


def run_all(jobs: Sequence[Job], processes: int, on_step: OnStep) -> Iterator[Done]:
    """Yield each unit as it ends, in any order.

    Raises:
        UnitFailed: with the worker's traceback, or its exit code where it left none.
    """
    if processes == 1:
        for job in jobs:
            yield _run(job, on_step)
    else:
        yield from _spawned(list(jobs), min(processes, len(jobs)), on_step)


def _run(job: Job, on_step: OnStep) -> Done:
    experiment = importlib.import_module(f"experiments.{job.stem}")
    start = time.monotonic()

    def tick(step: int) -> None:
        if step % TICK_EVERY == 0:
            on_step(job.unit.key, step)

    record = experiment.run(job.config, job.unit, job.device, tick)
    return Done(job.unit, record, time.monotonic() - start)


def _spawned(jobs: list[Job], processes: int, on_step: OnStep) -> Iterator[Done]:
    todo = jobs[::-1]
    workers = dict(_start() for _ in range(processes))
    try:
        for pipe in workers:
            pipe.send(todo.pop())
        while workers:
            ready = set(wait(list(workers)))
            for pipe in [p for p in workers if p in ready]:
                message = _receive(pipe, workers)
                if not isinstance(message, Done):
                    on_step(*message)
                    continue
                if todo:
                    pipe.send(todo.pop())
                else:
                    pipe.send(None)
                    workers.pop(pipe).join()
                yield message
    finally:
        for process in workers.values():
            process.kill()
            process.join()


def _start() -> tuple[Connection, BaseProcess]:
    context = get_context("spawn")  # fork would copy torch's thread pool in whatever state it is
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # the worker alone holds its end, so its death is our end-of-file
    return ours, process


def _receive(pipe: Connection, workers: dict[Connection, BaseProcess]) -> Any:
    """The worker's next message; what ends a run is raised."""
    try:
        message = pipe.recv()
    except EOFError:
        process = workers.pop(pipe)
        process.join()
        raise UnitFailed(f"a worker process ended with exit code {process.exitcode}") from None
    if isinstance(message, str):
        raise UnitFailed(message)
    return message


def _work(pipe: Connection) -> None:
    """A worker's life: jobs in; steps, results or one traceback out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    try:
        while (job := pipe.recv()) is not None:
            try:
                message: Any = _run(job, lambda unit, step: pipe.send((unit, step)))
            except OSError:
                raise
            except Exception:
                message = traceback.format_exc()
            pipe.send(message)
    except (EOFError, OSError):
        return  # the parent is gone
