"""Record each step of a training loop."""

import atexit
import fnmatch
import numbers
import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor, nn
from torch.optim import Optimizer

from ampsim.core.validation import as_int
from ampsim.runs.record.attach import Flags, attach
from ampsim.runs.record.header import header_of, optimizers_of, scaler_of
from ampsim.runs.record.measure import checksums, parameters_of, read
from ampsim.runs.record.stalled_parameters import StalledParameters
from ampsim.runs.record.step import Step, name_of
from ampsim.runs.record.writer import OnSkip, Writer

if TYPE_CHECKING:
    from ampsim.core.json_lines import Record

RESERVED = {
    "run",
    "step",
    "loss_scale",
    "skipped",
    "grad_norm",
    "nonfinite",
    "exponent_histograms",
    "warning",
}
"""Names of values that no user logs."""


def watch(
    model: nn.Module | Mapping[str, Tensor],
    optimizer: Any,
    scaler: Any = None,
    *,
    to: Any,
    sample_every: int = 100,
    sample_pattern: str = "*",
    stall_steps: int = 100,
    on_skip: OnSkip | None = None,
    first_step: int | None = None,
) -> "Run":
    """Record each step of a training loop without changing the loop.

    Each ``scaler.update()`` closes a record; without a scaler, or with a disabled one, each step of
    the last optimizer does. Each step reads the gradients once more for their norm and does not
    wait for the device. Records are written in groups, at most 32 steps or 0.1 seconds after the
    step; a process that is killed loses those that wait. Only `watch` itself (for `stall_steps`),
    `Run.skipped`, `Run.flush`, `Run.close`, and sparse gradients wait for the device. Errors in
    recording are warnings and do not stop training.

    Norms are those of unscaled, complete gradients before clipping; without a scaler, of the
    gradients that the optimizer receives. With sharded parameters, each process records its own
    part: pass a separate file per process.

    >>> import torch, tempfile
    >>> from ampsim.runs import records, watch
    >>> model, path = torch.nn.Linear(2, 1), f"{tempfile.mkdtemp()}/run.jsonl"
    >>> optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
    >>> with watch(model, optimizer, scaler, to=path) as run:
    ...     loss = model(torch.ones(1, 2)).sum()
    ...     run.log(loss=loss)
    ...     scaler.scale(loss).backward()
    ...     scaler.step(optimizer)
    ...     scaler.update()
    >>> [(each["step"], each["loss_scale"], each["skipped"], round(each["grad_norm"], 3)) for each in records(path)]
    [(0, 8.0, False, 1.732)]

    Args:
        model: Module, or mapping of names to parameters; its parameter names are recorded.
        optimizer: Optimizer, sequence of optimizers, or wrapper with an attribute ``optimizer``, as
            accelerate's.
        scaler: `torch.amp.GradScaler` or a subclass, a scaler of `ampsim.torch`, or None. With
            accelerate, None takes the scaler of the prepared optimizer.
        to: Path, Weights & Biases run, TensorBoard SummaryWriter, or a list of them; see
            `sinks.sink`.
        sample_every: Number of steps between two samples of the exponents; 0 takes no samples.
        sample_pattern: Shell-style pattern of the parameters to sample, e.g. ``"*attn*"``.
        stall_steps: Warn after this many steps without a parameter change; 0 disables the warning.
        on_skip: Function called with the record of each skipped step, once the skip is known: in
            the step's `update` on the CPU, some steps later on CUDA. Its exceptions are raised
            there. Code that must not run after a skip, such as a scheduler step, reads
            `Run.skipped` instead.
        first_step: Number of the next step, at least 0. None starts at 0, or warns and continues
            after the last step in the file. To resume from a checkpoint, pass its step: later records in the
            file are then ignored.

    Returns:
        Run: The run. Log values to it and close it, or use it in a ``with`` block.

    Raises:
        BlockingIOError: If another process is writing the file.
        TypeError: If an argument has an invalid type.
        ValueError: If an argument is out of range, or the scaler is already watched or cannot be
            watched.
    """
    sample_every = as_int("sample_every", sample_every, 0, "to take no samples pass 0")
    stall_steps = as_int("stall_steps", stall_steps, 0, "to disable the warning pass 0")
    optimizers = optimizers_of(optimizer)
    scaler = scaler_of(optimizer, scaler)
    named = (
        dict(model.named_parameters()) if isinstance(model, nn.Module) else dict(model)
    )
    names = {param: name for name, param in named.items()}
    stalled = StalledParameters(optimizers) if stall_steps else None
    header = header_of(optimizers, scaler, named)
    writer = Writer(
        to, header, first_step=first_step, names=names, stalled=stalled, on_skip=on_skip
    )
    with ExitStack() as failed:
        failed.callback(writer.close, {})
        options = {"sample_every": sample_every, "stall_steps": stall_steps}
        run = Run(optimizers, names, scaler, writer, pattern=sample_pattern, **options)
        failed.pop_all()
    return run


class Run:
    """A watched training run; `watch` creates it."""

    # One iteration: gradients() for each optimizer -> closing() when update() is called -> closed()
    # when its flags are known. With an AsyncGradScaler the three may come from different threads,
    # and the next iterations may begin in between; `_lock` guards all attributes below it.

    def __init__(
        self,
        optimizers: list[Optimizer],
        names: dict[Tensor, str],
        scaler: Any,
        writer: Writer,
        *,
        sample_every: int,
        pattern: str,
        stall_steps: int,
    ) -> None:
        self._optimizers, self._names, self._writer = optimizers, names, writer
        self._sample_every, self._pattern, self._stall_steps = (
            sample_every,
            pattern,
            stall_steps,
        )
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._open: dict[Any, Step] = {}
        self._logged: Record = {}
        self._begun = self._closed = self._taken = 0
        self._detach = attach(self, optimizers, scaler)
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log(self, **values: float | Tensor) -> None:
        """Add values to the record of the current step.

        A step ends with ``scaler.update()``: call ``run.log(loss=loss)`` before it. Values that are
        logged after it belong to the next step; those after the last step are added to the last
        record.

        Args:
            values: Real numbers, or tensors with one element, which are not waited for. If a name
                is logged twice in one iteration, the last value is kept.

        Raises:
            TypeError: If a value is neither a real number nor a tensor with one element.
            ValueError: If a name is a field of each record, e.g. ``loss_scale``.
        """
        for name, value in values.items():
            if name in RESERVED:
                raise ValueError(
                    f"log({name}=...): this name is a field of each record; "
                    f"use another name, e.g. my_{name}"
                )
            with self._lock:
                self._logged[name] = _scalar(name, value)

    @property
    def skipped(self) -> bool:
        """Whether a step of the last closed iteration was skipped; waits for the device.

        ``if not run.skipped: schedule.step()`` is correct for fused optimizers too.
        """
        self._writer.write(wait=True)
        return self._writer.skipped

    def flush(self) -> None:
        """Write all records so far; waits for the device."""
        self._writer.write(wait=True, last=True)

    def close(self) -> None:
        """Write all records, detach from the scaler, and close the file.

        Waits for the device. Idempotent.

        Raises:
            Exception: If `on_skip`, or work on the optimizer's thread, raised. The run is closed
                nevertheless.
        """
        atexit.unregister(self.close)
        if self._is_forked():
            return
        with ExitStack() as last:
            last.callback(self._writer.close, self._logged)
            last.callback(self._detach)

    def _is_forked(self) -> bool:
        """Return whether this is a forked child, which has the parent's files and none of its
        threads.
        """
        return self._process != os.getpid()

    # The methods below are called by what is watched, see `attach.Watcher`.

    def gradients(self, key: Any, optimizer: Optimizer, scale: Tensor) -> None:
        """Read gradients that are complete and still scaled."""
        if self._is_forked():
            error = RuntimeError("expected watch() in the process that trains")
            self._writer.warn(error, "this forked process is not recorded")
            return
        with self._lock:
            step = self._step(key)
            if any(optimizer is known for known in step.optimizers):
                return
            step.optimizers.append(optimizer)
        try:
            step.measure(optimizer, scale, self._matches)
        except Exception as error:  # recording must not stop training
            self._writer.warn(error)

    def _step(self, key: Any) -> Step:
        """Return the step of an iteration; the first caller opens the step."""
        if key not in self._open:
            is_sampled = (
                self._sample_every > 0 and self._begun % self._sample_every == 0
            )
            self._open[key] = Step(is_sampled)
            self._begun += 1
        return self._open[key]

    def _matches(self, param: Tensor) -> bool:
        return fnmatch.fnmatch(name_of(param, self._names), self._pattern)

    def stepping(self, optimizer: Optimizer) -> None:
        """Count an optimizer step; warn if the scaler did not report the step."""
        self._taken += 1  # a lost race costs one of many steps
        if not self._open and not self._is_forked():
            error = RuntimeError(
                "expected steps of the watched scaler; if it was replaced, watch() again"
            )
            self._writer.warn(
                error, f"a step of {type(optimizer).__name__} is not recorded"
            )

    def closing(self, key: Any) -> None:
        """Collect the values logged for the iteration that ends."""
        with self._lock:
            step = self._step(key)
            step.logged, self._logged = self._logged, {}

    def closed(self, key: Any, flags: Flags) -> None:
        """Build the record of a finished iteration."""
        if self._is_forked():
            return
        with self._lock:
            step = self._open.pop(key)
            if not flags:  # an update(new_scale) without a step
                self._logged = step.logged | self._logged
                return
            self._closed += 1
            try:
                step.flags = [
                    read(flag.reshape(())) for _, each in flags for flag in each
                ]
                if self._stall_steps and self._closed % self._stall_steps == 0:
                    step.checksums = checksums(parameters_of(self._optimizers))
                    step.steps, self._taken = self._taken, 0
                self._writer.add(step)
            except Exception as error:  # recording must not stop training
                self._writer.warn(error)
        if self._writer.is_due():
            self._writer.write(wait=False)


def _scalar(name: str, value: object) -> Any:
    """Return a logged value, see `measure.read`."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return read(value.reshape(()))
    if isinstance(value, numbers.Real):
        return value if isinstance(value, int) else float(value)
    raise TypeError(
        f"{name}={value!r}: expected a real number or a tensor with one element"
    )
