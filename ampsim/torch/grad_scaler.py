"""The thread-safe, asynchronous loss scaler: torch.amp.GradScaler's interface over tickets."""

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.core.machine import State
from ampsim.core.policies.base import Policy
from ampsim.torch import checkpointed, config
from ampsim.torch.checkpointed import Checkpointed
from ampsim.torch.constants import Constants
from ampsim.torch.gradients import unscale
from ampsim.torch.state import kinds
from ampsim.torch.state.versions import HostVersion, Version
from ampsim.torch.step import optimizer_step
from ampsim.torch.step.gradient_owners import Ownership
from ampsim.torch.step.records import Ledger, Record, Stage, StepReport
from ampsim.torch.threads.iterations import Iterations
from ampsim.torch.threads.register import Register, Ticket


class GradScaler(Constants, Checkpointed):
    """Scales losses and unscales gradients, at any depth, from any thread. Drop-in for torch.amp.GradScaler.

    Guarantees:
        * Every gradient is divided by the scale its loss was multiplied by, whatever the schedule.
        * No optimizer steps with a gradient that is inf or NaN once unscaled, at any scale.
        * A skipped step changes no bit of parameters or optimizer state.
        * A tensor that was used as a scale is never written again, unless `capturable`.
        * A call that raises changes neither scale nor stages (gradients it was unscaling excepted).
        * With depth 0 the scales, the stages, the errors and their texts are torch's; see Differences.

    Assumes:
        * One optimizer is stepped by one thread at a time, and its gradients are complete by then.
        * With `norm_hooks`, what they assume.
        * Updates come in ticket order. In a loop that passes no tickets one thread calls `scale` and `update`.

    Differences from torch. With ``exact_torch=True`` only 7 to 11 remain:
        1. ``min_scale`` is 2^-126 unless given: below 2^-128 torch's reciprocal is inf and a clean step writes
           inf into the parameters; 144 overflows in a row lead there from the default scale.
        2. Below scale 1 gradients are checked after the division too: torch steps with inf there.
        3. A closure is refused by position as well as by keyword.
        4. Constants and scales that no run could want are refused; torch accepts NaN, 0 and -1.
        5. ``update(8)`` and ``update(torch.tensor([8.0]))`` work; torch takes a Python float or shape ().
        6. A fused optimizer that has no state yet is not called to skip. torch calls it, and its fused SGD then
           takes uninitialized memory for its momentum.
        7. ``load_state_dict`` in the middle of an iteration ends it; torch swaps the scale under it.
        8. An `update` or `load_state_dict` that raises has changed nothing; torch has added found_inf up in
           place, or taken over half of the dict.
        9. A fused step that raises leaves no ``grad_scale`` behind; torch then divides twice.
        10. A fused optimizer that was unscaled before it had gradients can be stepped; torch's kernel finds an
           int for a found_inf.
        11. An optimizer whose ``step`` has a parameter ``grad_scaler`` gets unscaled gradients, not the scaler.

    ================ ====================================== =======================
    attribute        written by                             read by
    ================ ====================================== =======================
    ``_iterations``  see `Iterations`
    ``_scaled``      the thread that scales                 the thread that scales
    ``_rule``        the thread that runs updates           any thread, lock-free
    ``_ledger``      records locked; one by its holder      any thread
    ``_report``      a thread that steps, locked, whole     any thread, lock-free
    ================ ====================================== =======================

    Args:
        device: type of the device the scale lives on; the first scaled output decides which.
        init_scale, growth_factor, backoff_factor, growth_interval: the constants of the `Rule`.
        enabled: if False every method passes through.
        depth: k; iteration i uses the scale after max(0, i - k) updates. 0 is torch, 1 is RoundPipe.
        min_scale, max_scale: bounds of the scale.
        at_min_scale: what an overflow at ``min_scale`` does: "clamp" stays there, "warn" says so, "raise" raises
            FloatingPointError (those two wait for the device at each update).
        exact_torch: do exactly what torch does, also where it goes wrong; see Differences.
        policy: a policy of `ampsim.core.policies` with ``delay`` equal to `depth`, in place of constants and bounds,
            which must be left at their defaults. It is computed on the host: elsewhere each update waits.
        launch: runs a function later, in order, on the thread that owns the optimizer, such as
            ``OptimizerThread().launch``. None runs everything on the caller's thread.
        allow_fp16: unscale float16 gradients instead of refusing them.
        capturable: for CUDA graphs: every `update` writes the same two tensors, so that a replayed `scale` reads
            what the replayed `update` before it wrote. Before the capture run iterations until one was not
            skipped. The constants are captured as they are. In the captured iteration `update` comes after the
            backward pass and after `loss_value`. `get_scale`, `state_dict` and `last_step` tell of the latest
            replay; `update` with a new scale and `load_state_dict` work between replays. Depth 0, one stream.
    """

    _sync: Any = threading  # where locks come from; a test's scheduler takes its place

    @config.answering_old_spellings
    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        depth: int = 0,
        min_scale: float | None = None,
        max_scale: float | None = None,
        at_min_scale: config.AtMinScale = "clamp",
        exact_torch: bool = False,
        policy: Policy | None = None,
        launch: Callable[..., Any] | None = None,
        allow_fp16: bool = False,
        capturable: bool = False,
    ) -> None:
        self._device, self._enabled = str(device), config.usable(str(device), enabled)
        self._exact_torch, self._depth = exact_torch, config.check_depth(depth)
        self._at_min_scale = config.check_at_min_scale(at_min_scale, exact_torch)
        self._allow_fp16, self._launch = allow_fp16, launch
        if self._enabled:
            self._kind, self._rule, self._first = kinds.make(
                (init_scale, growth_factor, backoff_factor, growth_interval, min_scale, max_scale),
                self._depth,
                exact_torch=self._exact_torch,
                capturable=config.check_capturable(capturable, self._depth, at_min_scale, launch),
                policy=policy,
            )
        self._reset()

    def _reset(self) -> None:
        self._lock = self._sync.Lock()
        self._iterations: Iterations[Version] = Iterations(self._depth, self._launch, sync=self._sync)
        self._worker = self._iterations.worker
        self._scaled: Ticket[Version] | None = None  # the one that scale() used last
        self._ledger = Ledger(sync=self._sync)
        self._report = StepReport()
        self._ownership = Ownership(self._iterations.is_outstanding) if self._depth else None
        if self._sync is threading:
            checkpointed.alive.add(self)

    def _start(self, device: torch.device) -> Register[Version]:
        """Make the first version: on the device of the first output, as torch does; a "cpu" scaler's on the CPU."""
        device = torch.device("cpu") if self._device == "cpu" else device
        return self._iterations.start(lambda: self._kind.versions(self._first, self._rule, device))

    def begin(self, timeout: float | None = None) -> Ticket[Version]:
        """The next iteration's ticket, for loops that pass tickets; from then on `scale` and `update` need one.

        Waits until its scale is known, that is until at most `depth` tickets are outstanding; TimeoutError
        after `timeout` seconds. If disabled: a ticket that changes nothing.
        """
        if not self._enabled:
            return _NO_TICKET
        register = self._iterations.register or self._start(torch.device(self._device))
        self._iterations.by_ticket = True
        return register.begin(timeout)

    # --------------------------------------------------------------------------------------------- scale

    def scale(self, outputs: Any, ticket: Ticket[Version] | None = None) -> Any:
        """Multiply a tensor, or tensors in nested iterables, by the ticket's scale. Dtypes as in torch."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return self._scale_one(outputs, ticket)
        if isinstance(outputs, Iterable):
            scaled = map(partial(self.scale, ticket=ticket), outputs)
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    def _scale_one(self, output: Tensor, ticket: Ticket[Version] | None) -> Tensor:
        if ticket is not None:
            self._iterations.checked("scale", ticket)
        else:
            self._iterations.needs_no_ticket("scale")
            if self._iterations.register is None:
                self._start(output.device)
            ticket = self._iterations.current()
        self._scaled = ticket
        scaled = output * ticket.value.scale_on(output.device)
        if self._ownership is not None and scaled.requires_grad:
            self._ownership.watch(scaled, ticket)
        return scaled

    def loss_value(self, loss: Tensor, ticket: Ticket[Version] | None = None) -> Tensor:
        """The true loss of a scaled one: `loss` over the scale it was multiplied by. Waits for nothing.

        Right at every point of the loop, after `update` too: without a ticket it takes the one `scale` used
        last. ``loss.item() / scaler.get_scale()`` after ``update()`` is wrong wherever the scale changes. If
        `capturable`, RuntimeError after `update`.
        """
        ticket = ticket or self._scaled
        if not self._enabled or ticket is None:
            return loss.detach()
        if self._kind.in_place:  # update() writes the scale
            self._iterations.checked("loss_value", ticket)
        return ticket.value.divide(loss.detach())

    # ----------------------------------------------------------------------------------- unscale and step

    def unscale_(self, optimizer: Optimizer, ticket: Ticket[Version] | None = None) -> None:
        """Divide the gradients by the ticket's scale, in place, and note whether all were finite."""
        if not self._enabled:
            return
        ticket = self._iterations.stepping("unscale_", ticket)
        if self._worker.here():
            self._unscale(optimizer_step.unscale_, optimizer, ticket, exact_torch=self._exact_torch)
        else:
            self._worker.call(self.unscale_, optimizer, ticket)

    def unscale_and_clip_(self, optimizer: Optimizer, max_norm: float, ticket: Ticket[Version] | None = None) -> Tensor:
        """`unscale_` and ``clip_grad_norm_`` in one read of the gradients; returns the unscaled total norm.

        With a fused optimizer both multiplications are left to its kernel: ``.grad`` stays scaled until
        `step`. Other optimizers' gradients are unscaled and clipped here, in one write.

        Returns:
            Tensor of shape (), float32: the 2-norm of all unscaled gradients before the clip, what
            ``torch.nn.utils.clip_grad_norm_`` returns.
        """
        if not self._enabled:
            params = [p for group in optimizer.param_groups for p in group["params"]]
            return torch.nn.utils.clip_grad_norm_(params, max_norm)
        ticket = self._iterations.stepping("unscale_", ticket)
        if self._worker.here():
            return self._unscale(optimizer_step.unscale_and_clip_, optimizer, ticket, max_norm=max_norm)  # type: ignore[no-any-return]
        return self._worker.call(self.unscale_and_clip_, optimizer, max_norm, ticket)  # type: ignore[no-any-return]

    def _unscale(self, work: Callable[..., Any], optimizer: Optimizer, ticket: Ticket[Version], **options: Any) -> Any:
        """Move the optimizer on to UNSCALED, or say why not; only one thread gets through."""
        self._check_owner(optimizer, ticket)
        with self._ledger.holding(ticket.index, optimizer) as record:
            record.check_unscalable()
            try:
                record.observed = self._kind.observe(self._rule, optimizer, ticket.value)
                result = work(optimizer, ticket.value, record, allow_fp16=self._allow_fp16, **options)
                record.stage = Stage.UNSCALED
            except BaseException:
                record.forget()
                raise
        return result

    def _check_owner(self, optimizer: Optimizer, ticket: Ticket[Version]) -> None:
        if self._ownership is not None:
            self._ownership.check(optimizer, ticket)

    def step(self, optimizer: Optimizer, *args: Any, ticket: Ticket[Version] | None = None, **kwargs: Any) -> Any:
        """Step the optimizer with unscaled gradients, or skip it if any was not finite; unscales if need be.

        Returns what ``optimizer.step(*args, **kwargs)`` returned, None if it was skipped. From another
        thread than the optimizer's, with `launch`: runs there, is waited for, and returns None.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or (not self._exact_torch and args and callable(args[0])):
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        ticket = self._iterations.stepping("step", ticket)
        if not self._worker.here():
            self._worker.call(self.step, optimizer, *args, ticket=ticket, **kwargs)
            return None
        with self._ledger.holding(ticket.index, optimizer) as record:
            record.check_steppable()
            if self._worker.remote or self._iterations.by_ticket:  # another stream may have made the gradients
                ticket.value.keep(unscale.every_gradient(optimizer))
            result = self._step_held(optimizer, ticket, record, args, kwargs)
            record.stage = Stage.STEPPED
            self._stepped(optimizer, ticket, record)
        return result

    def _step_held(
        self, optimizer: Optimizer, ticket: Ticket[Version], record: Record, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        if optimizer_step.is_fused(optimizer):
            self._check_owner(optimizer, ticket)
            if record.stage is Stage.READY:
                record.observed = self._kind.observe(self._rule, optimizer, ticket.value)
            exact = self._exact_torch
            return optimizer_step.step_fused(optimizer, ticket.value, record, args, kwargs, exact_torch=exact)
        if record.stage is Stage.READY:
            self.unscale_(optimizer, ticket)
        return optimizer_step.step_plain(optimizer, record, args, kwargs)

    def _stepped(self, optimizer: Optimizer, ticket: Ticket[Version], record: Record) -> None:
        if self._ownership is not None:
            self._ownership.release(optimizer)
        with self._lock:
            self._report = self._report.adding(ticket.index, optimizer, record)

    @property
    def last_step(self) -> StepReport:
        """What the newest iteration's steps did: ``.skipped``, ``.skipped_by(optimizer)``."""
        return self._report

    # -------------------------------------------------------------------------------------------- update

    def update(
        self,
        new_scale: float | Tensor | None = None,
        is_async: bool = True,
        ticket: Ticket[Version] | None = None,
    ) -> None:
        """Close the iteration: grow or back off by what its steps found, or set the scale to `new_scale`.

        With `launch` the update runs behind the steps on the optimizer's thread; ``is_async=False`` waits for
        it, and the next ticket then carries its result whatever the depth. `new_scale` is taken by value now.
        """
        if not self._enabled:
            return
        self._iterations.started("update")
        if new_scale is not None:
            new_scale = config.new_scale_by_value(new_scale, self._device, self._rule, exact_torch=self._exact_torch)
        elif not (self._worker.remote or self._ledger):  # before a ticket is begun for it
            raise AssertionError(_NOTHING_CHECKED)
        ended = self._iterations.ending(ticket)
        if self._worker.here():
            self._finish(ended, new_scale, is_async)
        else:
            done = self._iterations.ask(ended, partial(self._finish, ended, new_scale, is_async), is_async)
            if not is_async:
                done.result()

    def _finish(self, ticket: Ticket[Version], new_scale: float | Tensor | None, is_async: bool) -> None:
        flags = self._ledger.flags(ticket.index)
        if new_scale is None and not flags:
            raise AssertionError(_NOTHING_CHECKED)
        rule = self._rule

        def advance(version: Version) -> Version:
            if new_scale is not None:
                return version.override(rule, new_scale)
            config.check_floor(self._at_min_scale, rule, version, flags)
            return self._kind.next(version, rule, flags, self._ledger.observed(ticket.index), is_async)

        self._iterations.started("update").apply(ticket, advance, is_async=is_async)
        self._ledger.close(ticket.index)

    def synchronize(self) -> None:
        """Wait until everything sent to the optimizer's thread is done; raise what went wrong there."""
        self._iterations.synchronize()

    # ------------------------------------------------------------------------------------------- reading

    def get_scale(self, up_to_date: bool = False) -> float:
        """The scale that this thread's next call uses, or 1.0 if disabled. Waits for the device.

        On the optimizer's thread: the one gradients are divided by. Elsewhere: the one the next loss is
        multiplied by. With `up_to_date`, or in loops that pass tickets: the newest.
        """
        if not self._enabled:
            return 1.0
        if up_to_date:
            self.synchronize()
        register = self._iterations.register
        if register is None:
            return self._first[-1].newest if up_to_date else self._first[0].scale  # type: ignore[no-any-return]
        return (register.newest if up_to_date else self._iterations.seen_here(register)).read().scale

    def _get_growth_tracker(self) -> int:
        if not self._enabled:
            return 0
        register = self._iterations.register
        return (self._first[-1] if register is None else register.newest.read()).growth_tracker

    def is_enabled(self) -> bool:
        """Whether this scaler does anything."""
        return self._enabled

    def close(self) -> None:
        """Refuse further work and wake every thread that waits for a ticket. Idempotent."""
        self._iterations.close()


_NOTHING_CHECKED = "No inf checks were recorded prior to update."
_NO_TICKET: Ticket[Version] = Ticket(0, 0, HostVersion(State(1.0)))  # of every disabled scaler
