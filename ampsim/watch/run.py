"""A watched run: recording of its steps."""

import atexit
import fnmatch
import numbers
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Self

from torch import Tensor, nn
from torch.optim import Optimizer

from ampsim.core.validation import as_int
from ampsim.probe.async_host_copy import Fetched
from ampsim.watch.attach import Found, attach
from ampsim.watch.measure import exponents, fingerprint, gradients_of, norms
from ampsim.watch.run_header import known, optimizers_of, parameters_of
from ampsim.watch.stalled_parameters import Standstill
from ampsim.watch.step import Record, Step
from ampsim.watch.writer import OnSkip, Writer

RESERVED = frozenset(
    {
        "step",
        "loss_scale",
        "skipped",
        "optimizers",
        "grad_norm",
        "nonfinite",
        "exponent_histograms",
        "warning",
        "run",
    }
)


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

    Each ``scaler.update()`` closes a record; without a scaler, or with a disabled one, each step of the last optimizer
    does. Each step reads the gradients once more for their norm and does not wait for the device: a record is written
    when its values have arrived. Only `watch` itself (for `stall_steps`), `Run.skipped`, `Run.flush`, `Run.close`, and
    sparse gradients wait. Errors in recording are warnings and do not stop training.

    Norms are those of unscaled, complete gradients before clipping; without a scaler, of the gradients that the
    optimizer receives. With sharded parameters, each process records its own part: pass a separate file per process.

    >>> import torch, tempfile
    >>> from ampsim.run_file import records
    >>> model, path = nn.Linear(2, 1), f"{tempfile.mkdtemp()}/run.jsonl"
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
        optimizer: Optimizer, sequence of optimizers, or wrapper with an attribute ``optimizer``, as accelerate's.
        scaler: `ampsim.torch.GradScaler`, `torch.amp.GradScaler` or a subclass, or None. Must not be `capturable`.
        to: Path, Weights & Biases run, TensorBoard SummaryWriter, or a list of them; see `sinks.sink`.
        sample_every: Number of steps between two samples of the exponents; 0 takes no samples.
        sample_pattern: Shell-style pattern of the parameters to sample, e.g. ``"*attn*"``.
        stall_steps: Warn after this many steps without a parameter change; 0 disables the warning.
        on_skip: Function called with the record of each skipped step, once the skip is known: in the step's `update`
            on the CPU, some steps later on CUDA. Its exceptions are raised there. Code that must not run after a skip,
            such as a scheduler step, reads `Run.skipped` instead.
        first_step: Number of the next step, at least 0. None continues after the last step in the file, or starts at
            0. To resume from a checkpoint, pass its step: later records in the file are then ignored.

    Returns:
        Run: The run. Log values to it and close it, or use it in a ``with`` block.

    Raises:
        TypeError: If an argument has an invalid type.
        ValueError: If an argument is out of range, or the scaler is already watched or is `capturable`.
    """
    sample_every, stall_steps = (
        as_int("sample_every", sample_every, 0, "to take no samples pass 0"),
        as_int("stall_steps", stall_steps, 0, "to disable the warning pass 0"),
    )
    optimizers = optimizers_of(optimizer)
    named = dict(model.named_parameters()) if isinstance(model, nn.Module) else dict(model)
    standstill = Standstill(optimizers) if stall_steps else None
    writer = Writer(to, known(optimizers, scaler, named), first_step, standstill, on_skip)
    names_of = {param: name for name, param in named.items()}
    try:
        run = Run(
            optimizers,
            names_of,
            scaler,
            writer,
            sample_every=sample_every,
            pattern=sample_pattern,
            stall_steps=stall_steps,
        )
    except BaseException:
        writer.close()
        raise
    if isinstance(model, nn.Module):
        run.begins_with(model)
    return run


class Run:
    """A watched training run; `watch` creates it."""

    def __init__(
        self,
        optimizers: list[Optimizer],
        names: Mapping[Tensor, str],
        scaler: Any,
        writer: Writer,
        *,
        sample_every: int,
        pattern: str,
        stall_steps: int,
    ) -> None:
        self._optimizers, self._names, self._writer = optimizers, names, writer
        self._every, self._pattern, self._stall_steps = sample_every, pattern, stall_steps
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._open: dict[Any, Step] = {}
        self._logged: Record = {}
        self._logged_at: dict[Any, Record] = {}
        self._begun = self._closed = 0
        self._last: Step | None = None  # the finished step, until the next one begins
        self._detach = attach(self, optimizers, scaler)
        self._forget: Callable[[], None] | None = None
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------- for the user

    def log(self, **values: float | Tensor) -> None:
        """Add values to the record of the current step.

        A step ends with ``scaler.update()``; the next step begins when the model is called in training mode. Values
        logged in between are added to the finished step, unless its record already has the name. A record without
        logged values is written only when the next step begins, so a killed process may lose it. If `watch` was given
        a mapping of parameters, values belong to the next step: call ``run.log(loss=loss)`` before
        ``scaler.update()``.

        Args:
            values: Real numbers, or tensors with one element, which are not waited for. If a name is logged twice in
                one iteration, the last value is kept.

        Raises:
            TypeError: If a value is neither a real number nor a tensor with one element.
            ValueError: If a name is a field of each record, e.g. ``loss_scale``.
        """
        for name, value in values.items():
            if name in RESERVED:
                raise ValueError(
                    f"log({name}=...): this name is a field of each record; use another name, e.g. my_{name}"
                )
            if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
                kept: Any = value.detach().reshape(()).clone()
            elif isinstance(value, numbers.Real):
                kept = value if isinstance(value, int) else float(value)
            else:
                raise TypeError(
                    f"{name}={value!r}: expected a real number or a tensor with one element"
                )
            with self._lock:
                last = self._last
                if last is not None and name not in last.logged and not last.written:
                    last.late[name] = Fetched([kept]) if isinstance(kept, Tensor) else kept
                else:
                    self._logged[name] = kept

    def begins_with(self, model: nn.Module) -> None:
        """Let each call of a model in training mode begin a step."""

        def begin(module: nn.Module, _inputs: object) -> None:
            if module.training:
                self._last = None

        self._forget = model.register_forward_pre_hook(begin).remove

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
        """Write all records, detach from the scaler, and close the file; waits for the device. Idempotent.

        Raises:
            Exception: If `on_skip`, or work on the optimizer's thread, raised. The run is closed nevertheless.
        """
        atexit.unregister(self.close)
        if self._is_forked():
            return
        with ExitStack() as last:
            last.callback(self._writer.close)
            last.callback(self._detach)
            last.callback(self._forget or (lambda: None))
        if self._logged:
            error = ValueError(f"{', '.join(self._logged)}: log before update()")
            self._writer.warn(error, "logged after the last record")
            self._logged = {}

    def _is_forked(self) -> bool:
        """Return whether this is a forked child, which has the parent's files and none of its threads."""
        return os.getpid() != self._process

    # ------------------------------------------------------------------------------- for what is watched

    def gradients(self, key: Any, optimizer: Optimizer, scale: Tensor) -> None:
        """Read gradients that are complete and still scaled."""
        if self._is_forked():
            error = RuntimeError("expected watch() in the process that trains")
            self._writer.warn(error, "this forked process is not recorded")
            return
        with self._lock:
            step = self._open.get(key)
            self._last = None
            if step is None:
                step = self._open[key] = Step(self._every > 0 and self._begun % self._every == 0)
                self._begun += 1
            if any(optimizer is each for each in step.optimizers):
                return
            step.optimizers.append(optimizer)
        try:
            grads = gradients_of(optimizer, self._names)
            step.norms += norms(grads, scale)
            if step.sampled:
                step.counts += exponents(
                    [pair for pair in grads if fnmatch.fnmatch(pair[0], self._pattern)], scale
                )
        except Exception as error:  # watching must not end a run
            self._writer.warn(error)

    def stepping(self, optimizer: Optimizer) -> None:
        """Warn about an optimizer step that the scaler did not report."""
        if not self._open and not self._is_forked():
            error = RuntimeError(
                "expected steps of the watched scaler; if it was replaced, watch() again"
            )
            self._writer.warn(error, f"a step of {type(optimizer).__name__} is not recorded")

    def closing(self, key: Any) -> None:
        """Collect the values logged for the iteration that ends."""
        with self._lock:
            self._last = self._open.get(key) if self._forget else None
            if self._last is not None:
                self._last.logged, self._last.waits = self._logged, not self._logged
            self._logged_at[key], self._logged = self._logged, {}

    def closed(self, key: Any, found_inf: Found) -> None:
        """Build the record of a finished iteration."""
        if self._is_forked():
            return
        with self._lock:
            step = self._open.pop(key, None) or Step(sampled=False)
            logged = self._logged_at.pop(key, {})
            if not found_inf:  # an update(new_scale) without a step
                self._logged = logged | self._logged
                return
            step.logged, step.flags = logged, self._in_order(found_inf)
            self._closed += 1
            try:
                if self._stall_steps and self._closed % self._stall_steps == 0:
                    step.fingerprint = fingerprint(parameters_of(self._optimizers))
                step.fetch()
                self._writer.add(step)
            except Exception as error:  # watching must not end a run
                self._writer.warn(error)
        self._writer.write(wait=False)

    def _in_order(self, found_inf: Found) -> list[list[Tensor]]:
        """Return the flags per optimizer, in the order of `watch`, then of others; [] without a step."""
        flags = {id(optimizer): each for optimizer, each in found_inf}
        return [flags.pop(id(each), []) for each in self._optimizers] + list(flags.values())
