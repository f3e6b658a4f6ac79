"""Destinations of records: a file, a Weights & Biases run, a TensorBoard writer."""

import math
import os
from collections.abc import Mapping
from typing import Any, Protocol

from ampsim.runs.record.run_file import RunFile

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
        to: Path, Weights & Biases run, TensorBoard SummaryWriter, or object with ``append(record)``
            and ``close()``.
        run: Header of the run.

    Raises:
        BlockingIOError: If another process is writing the file.
        TypeError: If `to` is none of these.
    """
    if isinstance(to, str | os.PathLike):
        return RunFile(to, run)
    if hasattr(to, "define_metric") and hasattr(to, "log"):
        return _Wandb(to, run)
    if hasattr(to, "add_scalar") and hasattr(to, "add_text"):
        return _TensorBoard(to)
    if hasattr(to, "append") and hasattr(to, "close"):
        return to
    raise TypeError(
        f"to={to!r}: expected a path, a Weights & Biases run (wandb.init()), a TensorBoard SummaryWriter, "
        "or an object with append(record) and close(); pass to='run.jsonl'"
    )


class _Wandb:
    """Logs under ``ampsim/`` with its own step; the step counter of the run is the user's."""

    def __init__(self, run: Any, known: Mapping[str, object]) -> None:
        self._run = run
        run.define_metric("ampsim/step", hidden=True)
        run.define_metric("ampsim/*", step_metric="ampsim/step")
        run.config.update({"ampsim": dict(known)}, allow_val_change=True)

    def append(self, record: Record) -> None:
        self._run.log({"ampsim/step": record["step"], **_values(record)})

    def close(self) -> None:
        return


class _TensorBoard:
    """Writes under ``ampsim/`` at the steps of the record."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def append(self, record: Record) -> None:
        for name, value in _values(record).items():
            add = (
                self._writer.add_text
                if isinstance(value, str)
                else self._writer.add_scalar
            )
            add(name, value, record["step"])

    def close(self) -> None:
        self._writer.flush()


def _values(record: Record) -> dict[str, float | str]:
    """Return the numbers and texts of a record for a tracker, and log2 of the scale; no histograms."""
    values = {name: value for name, value in record.items() if name != "step"}
    nonfinite = values.pop("nonfinite", {}).items()
    if nonfinite:
        values["nonfinite"] = ", ".join(f"{name} {what}" for name, what in nonfinite)
    if record.get("loss_scale", 0) > 0:
        values["log2_scale"] = math.log2(record["loss_scale"])
    values.pop("exponent_histograms", None)
    return {
        f"ampsim/{name}": value if isinstance(value, str) else float(value)
        for name, value in values.items()
    }
