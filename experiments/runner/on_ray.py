"""Run units on a Ray cluster: a new local one, or a running one. The journal stays with this process.

Each node gets the code of this checkout. A node computes only if it equals the first machine that was
checked, because a file holds the results of one kind of machine. If a worker dies, Ray runs its unit
again, up to `TRIES` times in all.
"""

import importlib.util
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from experiments.runner import journal, pool, provenance
from experiments.runner.experiment import UsageError

TRIES = 3  # runs of a unit whose workers die
CONNECT = 10.0  # s until a host is taken to be out of reach
LEFT_OUT = [
    "/.git",
    "/.venv",
    "/experiments/data",
    "/figures",
    "/paper",
    "/tests",
]  # not read by any unit
T = TypeVar("T")


def check(on: str) -> None:
    """Raise UsageError for an invalid address, or if Ray is not installed."""
    if not re.fullmatch(r"ray|auto|(ray://)?[^/:]+:\d+", on):
        raise UsageError(
            f"on={on}: expected ray, auto, or ray://HOST:PORT; to start a cluster on this machine, pass --on ray"
        )
    if importlib.util.find_spec("ray") is None:
        raise UsageError(
            f"on={on}: expected Ray to be installed; pip install -c constraints.txt --group ray"
        )


def ask(on: str, processes: int, device: str, question: Callable[[], T]) -> T:
    """Return the result of a function on a node with the device."""
    ray = _connect(on, processes)
    if device == "cuda" and not ray.cluster_resources().get("GPU"):
        raise UsageError(f"device=cuda: the cluster of on={on} has no GPU; pass --device cpu")
    asked = ray.remote(**_needs(device), max_retries=TRIES - 1)(_answer)
    try:
        answer: T = ray.get(asked.remote(question))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    return answer


def _answer(question: Callable[[], T]) -> T:
    return question()


def run(
    on: str, jobs: Sequence[pool.Job], machine: Mapping[str, object], *, repeats: bool
) -> Iterator[pool.Ended]:
    """Yield each unit as it ends, in any order.

    Args:
        on: The cluster.
        jobs: The units.
        machine: What `provenance.machine` said; nodes that differ compute nothing.
        repeats: False if the units measure time: each then has a process of its own.

    Yields:
        The outcome of each unit.
    """
    ray = _connect(on, 1)
    wanted = {name: machine[name] for name in provenance.OF_MACHINE}
    under_way: dict[Any, pool.Job] = {}  # by what Ray calls its result
    for job in jobs:
        remote = ray.remote(
            **_needs(job.device), max_retries=TRIES - 1, max_calls=0 if repeats else 1
        )
        under_way[remote(_work).remote(job, wanted)] = job
    try:
        while under_way:
            ready = ray.wait([*under_way])[0][0]
            yield _result(ray, ready, under_way.pop(ready))
    finally:
        for left in under_way:
            ray.cancel(left, force=True)


def _result(ray: Any, ready: Any, job: pool.Job) -> pool.Ended:
    try:
        ended: pool.Ended = ray.get(ready)
    except ray.exceptions.RayTaskError as error:  # the unit never started
        return pool.Failed(job.unit, f"{type(error.cause).__name__}: {error.cause}", str(error))
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split(". ")[0].split())
        return pool.Failed(job.unit, f"its worker died {TRIES} times: {reason}")
    return ended


def _work(job: pool.Job, wanted: Mapping[str, object]) -> pool.Ended:
    """Run one unit on a node, if that is a machine like the others."""
    here = provenance.machine(job.device)
    here = {name: here[name] for name in wanted}
    if here != wanted:
        what = journal.difference(wanted, here)
        return pool.Failed(
            job.unit,
            f"the node differs from the first: {what}; use nodes of one kind with one installation",
        )
    return pool.run(job, lambda unit, steps: None)


def _needs(device: str) -> dict[str, float]:
    """Return what a unit takes of a node."""
    return {"num_cpus": 1} if device == "cpu" else {"num_cpus": 1, "num_gpus": 1}


def _connect(on: str, processes: int) -> Any:
    """Return Ray, connected.

    Raises:
        UsageError: No cluster answers.
    """
    import ray

    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS", "local") if on == "ray" else on
    local: dict[str, Any] = (
        {"num_cpus": processes, "include_dashboard": False} if address == "local" else {}
    )
    settings = {
        name: os.environ[name]
        for name in ("OMP_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG", "AMPSIM_KERNELS")
    }
    code = {"working_dir": str(provenance.ROOT), "excludes": LEFT_OUT, "env_vars": settings}
    try:
        _reach(address)
        ray.init(
            address, runtime_env=code, log_to_driver=False, logging_level=logging.ERROR, **local
        )
    except (OSError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
        raise UsageError(
            f"on={on}: no answer from a Ray cluster: {why}; start one with `ray start --head`, set "
            "RAY_AUTH_MODE as in the cluster, or pass --on ray to start one on this machine"
        ) from error
    return ray


def _reach(address: str) -> None:
    """Open a connection to a host and close it: Ray itself tries for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), CONNECT).close()
