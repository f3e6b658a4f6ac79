"""Destinations of records: a file, a Weights & Biases run, a TensorBoard writer."""

import contextlib
import itertools
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ampsim.probe.binades import LARGEST, SMALLEST
from ampsim.runs.record.run_file import RunFile, unpack_counts

Record = Mapping[str, Any]


class Sink(Protocol):
    """Interface of a destination, which receives the records of a run in order."""

    def append(self, record: Record) -> None:
        """Write one record, see `run_file`."""

    def close(self) -> None:
        """Finish; a tracker that the user created stays open."""


def sink(to: object, run: Mapping[str, object]) -> Sink:
    """Return the sink for a destination.

    Args:
        to: Path, Weights & Biases run, TensorBoard SummaryWriter, or object with ``append(record)`` and ``close()``.
        run: Header of the run.

    Raises:
        TypeError: If `to` is none of these.
    """
    if isinstance(to, str | os.PathLike):
        return _file(Path(to), run)
    if hasattr(to, "define_metric") and hasattr(to, "log"):
        return _Wandb(to, run)
    if hasattr(to, "add_scalar") and hasattr(to, "add_histogram_raw"):
        return _TensorBoard(to)
    if hasattr(to, "append") and hasattr(to, "close"):
        return to
    raise TypeError(
        f"to={to!r}: expected a path, a Weights & Biases run (wandb.init()), a TensorBoard SummaryWriter, "
        "or an object with append(record) and close(); pass to='run.jsonl'"
    )


def _file(path: Path, run: Mapping[str, object]) -> RunFile:
    """Open a run's file; if another process has it locked, open name.2.jsonl and so on."""
    with contextlib.suppress(BlockingIOError):
        return RunFile(path, run)
    for number in itertools.count(2):
        other = path.with_stem(f"{path.stem}.{number}")
        with contextlib.suppress(BlockingIOError):
            file = RunFile(other, run)
            break
    warnings.warn(
        f"{path}: another process is writing this file; this run is written to {other} instead, "
        f"from step {file.next_step}; pass a file per process, "
        "and first_step= for another first step",
        RuntimeWarning,
        stacklevel=2,
    )
    return file


class _Wandb:
    """Logs under ``ampsim/`` with its own step; the step counter of the run is the user's."""

    def __init__(self, run: Any, known: Mapping[str, object]) -> None:
        self._run = run
        run.define_metric("ampsim/step", hidden=True)
        run.define_metric("ampsim/*", step_metric="ampsim/step")
        run.config.update({"ampsim": dict(known)}, allow_val_change=True)

    def append(self, record: Record) -> None:
        import wandb

        values: dict[str, object] = {
            f"ampsim/{name}": value for name, value in _scalars(record).items()
        }
        for name, packed in record.get("exponent_histograms", {}).items():
            counts = unpack_counts(packed)
            bins = np.arange(
                SMALLEST - 1, LARGEST + 2
            )  # zeros are counted one binade below the smallest one
            values[f"ampsim/exponents/{name}"] = wandb.Histogram(np_histogram=(counts[:-2], bins))
        self._run.log({"ampsim/step": record["step"], **values})

    def close(self) -> None:
        return


class _TensorBoard:
    """Writes under ``ampsim/`` at the steps of the record."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def append(self, record: Record) -> None:
        step = record["step"]
        for name, value in _scalars(record).items():
            if isinstance(value, str):
                self._writer.add_text(f"ampsim/{name}", value, step)
            else:
                self._writer.add_scalar(f"ampsim/{name}", value, step)
        for name, packed in record.get("exponent_histograms", {}).items():
            self._add_histogram(f"ampsim/exponents/{name}", unpack_counts(packed), step)

    def _add_histogram(self, name: str, counts: Any, step: int) -> None:
        binades = np.arange(SMALLEST, LARGEST + 1)
        inner = counts[1:-2]
        if inner.any():
            total, weighted = float(inner.sum()), float((inner * binades).sum())
            squares = float((inner * binades**2).sum())
            low, high = float(binades[inner > 0].min()), float(binades[inner > 0].max())
            limits = (binades + 0.5).tolist()
            self._writer.add_histogram_raw(
                name, low, high, total, weighted, squares, limits, inner.tolist(), step
            )

    def close(self) -> None:
        self._writer.flush()


def _scalars(record: Record) -> dict[str, float | str]:
    """Return the scalars and texts of a record for a tracker, and log2 of the scale."""
    scalars: dict[str, float | str] = {}
    for name, value in record.items():
        if isinstance(value, str):
            scalars[name] = value
        elif isinstance(value, int | float) and name != "step":
            scalars[name] = float(value)
    for number, skipped in enumerate(record.get("optimizers", ())):
        if skipped is not None:
            scalars[f"skipped/{number}"] = float(skipped)
    if nonfinite := record.get("nonfinite"):
        scalars["nonfinite"] = ", ".join(f"{name} {what}" for name, what in nonfinite.items())
    if record.get("loss_scale", 0) > 0:
        scalars["log2_scale"] = math.log2(record["loss_scale"])
    return scalars
