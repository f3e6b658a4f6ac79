"""A watched run: what is read of its steps as they happen."""

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
    """Record each step of a training loop, which stays as it is.

    From now on each ``scaler.update()`` closes a record; without a scaler, or with a disabled one, each step of the
    last optimizer does. A step reads each gradient once more for its norm, and waits for no device: what lies there
    is written when it has arrived. Those that wait are `watch` itself (for `stall_steps`),
    `Run.skipped`, `Run.flush` and
    `Run.close`, and sparse gradients. What goes wrong in watching is a warning and does not end the run.

    Norms are of complete gradients before a clip; without a scaler, of those that the optimizer is given. Of sharded
    parameters each process sees its own part: give each a file of its own.

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
        model: whose parameters' names are recorded: a module, or a mapping of names to parameters.
        optimizer: one, several in a sequence, or a wrapper that has it as ``optimizer``, as accelerate's.
        scaler: `ampsim.torch.GradScaler`, `torch.amp.GradScaler` or its child, or None. Not a `capturable` one.
        to: a path, a Weights & Biases run, a TensorBoard SummaryWriter, or a list of them; see `sinks.sink`.
        sample_every: steps from one sample of the exponents to the next; 0 for none.
        sample_pattern: a pattern such as ``"*attn*"``: the parameters whose exponents are sampled.
        stall_steps: after how many steps in which no parameter has moved there is an alarm; 0 for none.
        on_skip: called with the record of each skipped step once it is known: in the step's `update` on the CPU,
            some steps later on CUDA; what it raises comes out there. Code that must not run after a skip, such as a
            schedule's, asks `Run.skipped`.
        first_step: the number of the next step. None goes on after the last one in the file, from 0 in a new one; a run
            that goes back to a checkpoint passes its step, and what was recorded from there on counts no more.

    Returns:
        The run: log to it, close it, or use it in a ``with`` block.

    Raises:
        TypeError, ValueError: an argument of another kind, or a scaler that is watched already; nothing is attached.
    """
    sample_every, stall_steps = (
        as_int("sample_every", sample_every, 0, "0 takes no samples"),
        as_int("stall_steps", stall_steps, 0, "0 for no alarm"),
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
    """A training run that is being watched; made by `watch`."""

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
        self._every, self._pattern, self._still = sample_every, pattern, stall_steps
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._open: dict[Any, Step] = {}
        self._logged: Record = {}
        self._logged_at: dict[Any, Record] = {}
        self._begun = self._closed = 0
        self._last: Step | None = None  # the step that is over, until the next one begins
        self._detach = attach(self, optimizers, scaler)
        self._forget: Callable[[], None] | None = None
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------- for the user

    def log(self, **values: float | Tensor) -> None:
        """Add to the record in progress, or to that of the step that is just over.

        A step is over with ``scaler.update()``; the next one begins where the model is called in training mode. What is
        logged in between, and not yet in the record, belongs to the step before: a record to which nothing was logged
        waits until then, so that a kill may lose one. Where `watch` was given a mapping of parameters, which nobody
        calls, all belongs to the next step: ``run.log(loss=loss)`` before ``scaler.update()``.

        Args:
            values: real numbers, and tensors with one element, which are not waited for; of a name's values in one
                iteration the last counts.

        Raises:
            ValueError: a name that a record has for itself; TypeError: not a number.
        """
        for name, value in values.items():
            if name in RESERVED:
                raise ValueError(
                    f"log({name}=...): expected a name that is not in every record; call it my_{name}"
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
        """Take each call of a model in training mode for the beginning of a step."""

        def begin(module: nn.Module, _inputs: object) -> None:
            if module.training:
                self._last = None

        self._forget = model.register_forward_pre_hook(begin).remove

    @property
    def skipped(self) -> bool:
        """Whether a step of the last closed iteration was skipped. Waits for the device.

        ``if not run.skipped: schedule.step()`` is right for fused optimizers too.
        """
        self._writer.write(wait=True)
        return self._writer.skipped

    def flush(self) -> None:
        """Write what is known so far; waits for the device."""
        self._writer.write(wait=True, last=True)

    def close(self) -> None:
        """Write everything, let go of the scaler, and close the file. Twice is once. Waits for the device.

        Raises:
            Exception: what `on_skip`, or work on the optimizer's thread, has raised; all is closed nevertheless.
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
        """Tell a child process, which has its parent's files open and none of its threads."""
        return os.getpid() != self._process

    # ------------------------------------------------------------------------------- for what is watched

    def gradients(self, key: Any, optimizer: Optimizer, scale: Tensor) -> None:
        """Read gradients that are complete and stall_steps scaled."""
        if self._is_forked():
            error = RuntimeError("expected watch() in the process that trains")
            self._writer.warn(error, "nothing of this fork is recorded")
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
        """Notice a step of which the scaler has told nothing."""
        if not self._open and not self._is_forked():
            error = RuntimeError(
                "expected steps of the watched scaler; if it was replaced, watch() again"
            )
            self._writer.warn(error, f"a step of {type(optimizer).__name__} is not recorded")

    def closing(self, key: Any) -> None:
        """Take what was logged for the iteration that ends."""
        with self._lock:
            self._last = self._open.get(key) if self._forget else None
            if self._last is not None:
                self._last.logged, self._last.waits = self._logged, not self._logged
            self._logged_at[key], self._logged = self._logged, {}

    def closed(self, key: Any, found_inf: Found) -> None:
        """Make the record of an iteration that is over."""
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
                if self._still and self._closed % self._still == 0:
                    step.fingerprint = fingerprint(parameters_of(self._optimizers))
                step.fetch()
                self._writer.add(step)
            except Exception as error:  # watching must not end a run
                self._writer.warn(error)
        self._writer.write(wait=False)

    def _in_order(self, found_inf: Found) -> list[list[Tensor]]:
        """Return the flags of each optimizer as `watch` was given them, none if it made no step; then of others."""
        flags = {id(optimizer): each for optimizer, each in found_inf}
        return [flags.pop(id(each), []) for each in self._optimizers] + list(flags.values())
