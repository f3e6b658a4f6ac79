"""Many rules over many traces of ceilings, each a file of any size: read in chunks, in several processes.

Memory grows with rules and processes, not with steps. A trace is what ``numpy.save`` writes of one.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from ampsim.core.arguments import as_int
from ampsim.core.machine import Machine, init
from ampsim.core.replay.ceilings import index_ceilings, replay_ceilings
from ampsim.core.replay.sweep import ROW

CHUNK = 2**22  # steps in memory at a time


class Swept(NamedTuple):
    """A trace's steps, and what each rule does over it: `rows` as `ampsim.core.replay.sweep.sweep` returns them."""

    path: Path
    steps: int
    rows: npt.NDArray[np.void]


def sweep_files(
    rules: Iterable[Machine[Any]],
    paths: Iterable[Path],
    *,
    jobs: int = 1,
    chunk: int = CHUNK,
) -> Iterator[Swept]:
    """Yield what each rule does over each trace, a trace as soon as it is done.

    The rows are those of `sweep` over the whole trace to the last bit, but for ``mean_log2_scale`` of a rule whose
    scales are no powers of two, which is summed chunk by chunk.

    Args:
        rules: of any number; they must pickle where there are several jobs.
        paths: ``.npy`` files of shape (steps,), float32 or float64, each the ceilings of one run.
        jobs: processes, each with one chunk in memory. With more than one, a script needs ``if __name__``.
        chunk: steps in memory at a time.

    Raises:
        OSError: a file that cannot be read; ValueError or TypeError: one that is no trace, by name and step.
        Exception: whatever a rule's framework raises.
    """
    as_int("jobs", jobs, 1, "the default is 1")
    as_int("chunk", chunk, 1, f"the default is {CHUNK}")
    work = partial(_sweep_file, list(rules), chunk=chunk)
    if jobs == 1:
        yield from map(work, paths)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:  # fork would copy other libraries' threads
        futures = [pool.submit(work, path) for path in paths]
        try:
            yield from (future.result() for future in as_completed(futures))
        finally:
            pool.shutdown(cancel_futures=True)


def steps(path: Path) -> int:
    """Return how many steps a trace has, from its header.

    Raises:
        ValueError: no trace.
    """
    with path.open("rb") as file:
        return _header(path, file)[0]


def _sweep_file(rules: Sequence[Machine[Any]], path: Path, *, chunk: int) -> Swept:
    states = [init(rule) for rule in rules]
    skips, log2_scales = np.zeros(len(rules), np.int64), np.zeros(len(rules))
    done = 0
    for values in _chunks(path, chunk):
        try:
            index = index_ceilings(values)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{path}, from step {done}: {error}") from error
        for number, rule in enumerate(rules):
            ran = replay_ceilings(rule, index, state=states[number])
            states[number] = ran.state
            skips[number] += len(ran.skipped)
            log2_scales[number] += ran.sum_log2_scale
        done += len(values)
    rows = np.empty(len(rules), ROW)
    rows["skips"], rows["skip_rate"], rows["mean_log2_scale"] = skips, skips / done, log2_scales / done
    rows["scale"] = [state.scale for state in states]
    return Swept(path, done, rows)


def _chunks(path: Path, size: int) -> Iterator[npt.NDArray[Any]]:
    """Read a trace piece by piece: a memory map of it would count as a whole against a limit of the address space."""
    with path.open("rb") as file:
        total, dtype = _header(path, file)
        for start in range(0, total, size):
            wanted = min(size, total - start)
            values = np.fromfile(file, dtype, wanted)
            if len(values) < wanted:
                raise ValueError(
                    f"{path}: ends after {start + len(values)} of {total} steps: expected a whole file; write it again"
                )
            yield values


def _header(path: Path, file: BinaryIO) -> tuple[int, np.dtype[Any]]:
    """Read the steps and the dtype of a trace; the file stands at its first number then."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except ValueError as error:
        raise ValueError(f"{path}: no .npy file ({error}): expected one that numpy.save wrote") from error
    if len(shape) != 1 or not shape[0] or dtype not in (np.float32, np.float64):
        raise ValueError(f"{path}: {dtype} of shape {shape}: expected float32 or float64 of shape (steps,)")
    return shape[0], dtype
