"""Runs units of work, in this process or in spawned ones, and yields each result as it ends."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from typing import NamedTuple, Self

from ampsim.core.json_lines import Record
from experiments import KERNELS, emulation
from experiments.runner.experiment import Config, Experiment, Unit
from experiments.runner.progress import Steps


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
    """A unit that raised, or whose process ended."""

    unit: Unit
    reason: str  # one line
    details: str = ""  # the traceback, if there is one


Ended = Done | Failed


def run(job: Job) -> Ended:
    """Run one unit in this process; an exception is a result."""
    start = cpu_seconds()
    steps = Steps(f"{job.stem}: {job.unit.key}", job.config.steps)
    try:
        experiment = Experiment(job.stem).module
        if "torch" in sys.modules:
            emulation.speed_up_halves()
        record = experiment.run(
            job.config, job.unit.settings, job.unit.seed, job.device, steps
        )
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return Failed(job.unit, reason, traceback.format_exc())
    return Done(job.unit, record, cpu_seconds() - start)


def cpu_seconds() -> float:
    """Return the CPU time of this process so far, and of those that it started and waited for."""
    return sum(os.times()[:4])


class Workers:
    """Processes that stay from one experiment to the next: a context that ends them.

    One `run` at a time.
    """

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, jobs: Sequence[Job], processes: int) -> Iterator[Ended]:
        """Yield each unit as it ends, in any order; `processes` of them at a time, with 1 in this
        process.
        """
        if processes == 1:
            yield from map(run, jobs)
            return
        if self._pool is None:
            # A fork would copy torch's thread pool in whatever state it is.
            context = get_context("spawn")
            self._pool = ProcessPoolExecutor(processes, context, start_worker)
        under_way = {self._pool.submit(run, job): job.unit for job in jobs}
        try:
            for future in as_completed(under_way):
                try:
                    yield future.result()
                except BrokenProcessPool:  # the pool has ended all of its processes
                    self._end()
                    yield Failed(under_way[future], "a worker process ended")
        except BaseException:  # an interrupted run has units under way
            self._end()
            raise

    def _end(self) -> None:
        """Kill the processes, which hold nothing: what they did is with us."""
        if self._pool is not None:
            # Not `active_children`, which has those of other pools too. None: shut down.
            for process in list((self._pool._processes or {}).values()):  # noqa: SLF001
                process.kill()
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def start_worker() -> None:
    """Leave Ctrl-C, which reaches the whole group, to the parent; end where the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


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
