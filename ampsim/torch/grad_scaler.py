"""The thread-safe, asynchronous loss scaler with the interface of torch.amp.GradScaler."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.core.machine import State, init
from ampsim.core.policies import Policy
from ampsim.core.torch_model import refusals
from ampsim.torch import checkpoint, config
from ampsim.torch.gradients.collect import every_gradient
from ampsim.torch.observer import Observer
from ampsim.torch.state.host import HostVersion
from ampsim.torch.state.version import AnyVersion
from ampsim.torch.step.gradient_owners import GradientOwners, LeftGradients, Owners, ScaleTicket
from ampsim.torch.step.optimizer_step import Args, Kwargs, Means, OptimizerStep, is_fused
from ampsim.torch.step.ranks import Ranks
from ampsim.torch.step.records import Record, Stage, StepRecords, StepReport
from ampsim.torch.threads.iterations import Iterations
from ampsim.torch.threads.launcher import Launch
from ampsim.torch.threads.register import Register, Sync, Ticket
from ampsim.torch.torch_names import CHECK, TorchNames

T = TypeVar("T")
ByHand = Callable[[AnyVersion], AnyVersion]  # makes the next version, whatever found_inf is


class GradScaler(TorchNames):
    """Thread-safe drop-in replacement for `torch.amp.GradScaler`, of which it is a subclass.

    With ``depth`` > 0 the optimizer may run behind the forward and backward passes; see `ampsim.core.pipeline`.

    Guarantees:
        * Each gradient is divided by the scale that its loss was multiplied by, whatever the schedule of threads; else
          a call raises. See 15 for the exceptions.
        * No optimizer steps with an unscaled gradient that is inf or NaN, at any scale.
        * A skipped step changes no bit of parameters or optimizer state.
        * A tensor that was used as a scale is not written again, unless `capturable`.
        * A call that raises changes neither the scale nor the stages. Gradients that it was unscaling may change.
        * With ``depth=0`` the scales, the stages, the errors, and their texts are torch's; see Differences.

    Assumes:
        * One thread at a time steps an optimizer, and its gradients are complete by then.
        * No backward pass writes a ``.grad`` while a step reads it: gradients are handed over before. Such a race may
          end the process in torch itself, before ampsim can raise.
        * Gradients are not accumulated over an `update` that changes the scale.
        * An optimizer with ``_step_supports_amp_scaling`` divides and skips by the scale and flag it receives.
        * CUDA: the optimizers of one iteration step on one stream, or `update` is ordered after all their streams.
        * Updates come in ticket order. In a loop without tickets, one thread calls `scale` and `update`.

    Differences from torch. With ``exact_torch=True`` only 8 to 12, 14, and 16 remain:
        1. ``min_scale`` defaults to 2^-126. Below 2^-128 torch's reciprocal is inf, and a finite step writes inf into
           the parameters; 144 consecutive overflows reach this scale from the default.
        2. Below scale 1 gradients are also checked after the division, and at any scale the sums of duplicates in a
           sparse gradient are checked. torch steps with inf there.
        3. A closure raises as a positional argument too, not only as a keyword.
        4. Invalid constants, scales, and devices raise; torch accepts NaN, 0, -1, and "gpu".
        5. ``update(8)`` and ``update(torch.tensor([8.0]))`` work; torch accepts a Python float or a tensor of shape ().
        6. Optimizer state that a fused optimizer creates in a skipped step is dropped. torch keeps it, and its fused
           SGD then uses uninitialized memory as momentum. In both, a fused optimizer is called although its kernel
           skips, so accelerate and transformers, which look for a call, see no skip; `last_step` shows it.
        7. After ``load_state_dict`` in the middle of an iteration, gradients of that iteration that are not yet divided
           raise as in 15 if another scale would divide them; torch divides them by that scale. In a loop with tickets
           ``load_state_dict`` ends the iteration.
        8. An `update` or `load_state_dict` that raises has changed nothing; torch has then summed found_inf in place,
           or loaded half of the dict. A missing key raises a KeyError with a message.
        9. A fused step that raises leaves no ``grad_scale`` on the optimizer; torch then divides twice.
        10. A fused optimizer that was unscaled before it had gradients can be stepped; torch's kernel receives an int
           as found_inf and raises.
        11. An optimizer whose ``step`` has a parameter ``grad_scaler`` gets unscaled gradients, not the scaler, and a
           RuntimeWarning. Such an optimizer must not divide by a scale from elsewhere.
        12. A gradient on the CPU with another memory layout than its parameter is copied before a fused step. An
           expanded gradient, and a parameter with gaps, raise. torch's kernel ignores strides.
        13. If a growth interval is set or loaded below the current ``growth_tracker``, the next finite step grows.
           torch waits until the tracker equals the interval, so it does not grow before the next overflow.
        14. Of torch's private names (`ampsim.torch.torch_names`), writes to ``_scale`` and ``_growth_tracker`` take
           effect between iterations, or in an overridden `update`. Within an iteration they raise; writes by numpy
           always raise. A tensor is copied, not shared. ``_scale.set_`` is not detected. In ``_per_optimizer_states``
           all may be written, with `group` only the stages. ``_unscale_grads_``, ``_maybe_opt_step``, and
           ``_lazy_init_scale_growth_tracker`` may be overridden; the first two also in torch's class itself. Other
           changes of torch's class have no effect here.
        15. Gradients from before an `update` that no step consumed and nothing wrote since raise if the scale changed
           or `unscale_` has divided them; zero gradients do not. torch divides them by the new scale. This is not
           detected if `capturable`, nor for parameters that no loss before the first `update` reached, until a call
           has had their optimizer.
        16. A first `scale` in inference mode creates a scale that training can use; torch raises in training then.

    ================ ====================================== =======================
    attribute        written by                             read by
    ================ ====================================== =======================
    ``_iterations``  see `Iterations`
    ``_scaled``      the thread that scales                 the thread that scales
    ``_rule``        the thread that runs updates           any thread, lock-free
    ``_records``     locked; one record by its holder       any thread
    ``_report``      a thread that steps, locked, whole     any thread, lock-free
    ``_observers``   `observe`, one entry at a time         any thread, lock-free
    ================ ====================================== =======================

    Args:
        device: Device type of the scale. The first scaled output determines the device.
        init_scale: Initial loss scale, a positive factor within the bounds.
        growth_factor: Factor of a growth; above 1.
        backoff_factor: Factor of a backoff; above 0 and below 1.
        growth_interval: Number of consecutive finite steps before a growth; at least 1.
        enabled: If False, all methods pass their inputs through.
        depth: Number of updates by which the scale may lag, at least 0: iteration i uses the scale after
            max(0, i - depth) updates. 0 is torch's loop, 1 is RoundPipe's.
        min_scale: Lower bound of the scale; at least 2^-126, the default.
        max_scale: Upper bound of the scale; default: the largest float32 number.
        on_min_scale: Action for an overflow at ``min_scale``: "clamp" keeps the scale, "warn" warns, "raise" raises
            FloatingPointError. "warn" and "raise" wait for the device at each update.
        exact_torch: Whether to reproduce torch exactly, including its defects; see Differences.
        policy: Policy of `ampsim.core.policies` with ``delay`` equal to `depth`. It replaces the constants and bounds,
            which must keep their defaults. It is computed on the host, so each update waits for other devices.
        launch: Function that runs another function later, in order, on the thread that owns the optimizer, e.g.
            ``OptimizerThread().launch``. None runs all work on the caller's thread.
        allow_fp16: Whether to unscale float16 gradients instead of raising.
        capturable: Whether to support CUDA graphs: each `update` writes the same two tensors, so that a replayed
            `scale` reads the result of the `update` before it. Run iterations before the capture until one is not
            skipped. The constants are captured. In the captured iteration, call `update` after the backward pass and
            after `loss_value`. `get_scale`, `state_dict`, and `last_step` show the latest replay. Call `update` with a
            new scale and `load_state_dict` between replays. Requires ``depth=0`` and one stream.
        group: Process group of torch.distributed, or "world". Ranks share found_inf before any rank steps, with DDP,
            FSDP2, or other shards, so scales, skips, and state dicts are equal on all ranks. One all-reduce computes
            the largest flag and, for a policy, the largest amax; a call waits for the result when it needs it. All
            ranks must make the same calls in the same order, including this one. A missing or reordered step raises on
            all ranks. Tested with gloo; not yet run with nccl.
    """

    _sync: Sync = threading  # module of locks; a test's scheduler replaces it

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
        on_min_scale: config.AtMinScale = "clamp",
        exact_torch: bool = False,
        policy: Policy | None = None,
        launch: Launch | None = None,
        allow_fp16: bool = False,
        capturable: bool = False,
        group: Any = None,
    ) -> None:
        self._check_overrides()
        init_scale = (
            init_scale.item() if isinstance(init_scale, Tensor) else init_scale
        )  # which torch fills in too
        if not exact_torch:
            config.check_device(device)
        self._device, self._enabled = str(device), config.usable(str(device), enabled)
        self._options = config.Options(depth, on_min_scale, exact_torch, allow_fp16, capturable)
        if self._enabled:
            self._options.check_capturable(launch)
            numbers = (
                init_scale,
                growth_factor,
                backoff_factor,
                growth_interval,
                min_scale,
                max_scale,
            )
            if policy is None:
                self._rule: Any = config.make_rule(*numbers, exact_torch=exact_torch)
                # The scale is rounded to float32 when `scale` or `begin_iteration` makes the first
                # version, as in torch.
                self._first: checkpoint.States = (State(init_scale),)
            else:
                self._rule = config.check_policy(policy, numbers, self._options)
                self._first = (init(self._rule),)
        self._ranks = None if group is None else Ranks(group, self._device)
        if self._ranks:
            common = config.common_to_ranks(self._options, self._rule) if self._enabled else {}
            self._ranks.check_equal("GradScaler()", {"enabled": self._enabled, **common})
        self._reset(launch)

    def _reset(self, launch: Launch | None) -> None:
        options = self._options
        self._means = Means(options.exact_torch, options.allow_fp16, self._ranks)
        self._lock = self._sync.Lock()
        self._iterations: Iterations[AnyVersion] = Iterations(
            options.depth, launch, sync=self._sync
        )
        self._launcher = self._iterations.launcher
        self._scaled: ScaleTicket | None = None  # the one that scale() used last
        self._records = StepRecords(sync=self._sync)
        self._by_hand = None
        self._report = StepReport()
        self._observers: dict[object, Observer] = {}
        self._owners = Owners()
        if options.depth:
            self._owners = GradientOwners(self._iterations.is_outstanding)
        elif hasattr(self, "_rule") and not (options.exact_torch or options.capturable):
            self._owners = LeftGradients()
        if self._sync is threading:
            checkpoint.alive.add(self)

    def _start(self, device: torch.device) -> Register[AnyVersion]:
        """Make the first version: on the device of the first output, as torch does; a "cpu" scaler's on the CPU."""
        device = torch.device("cpu") if self._device == "cpu" else device
        kind = config.version_class(self._rule, device, self._options)
        return self._iterations.start(lambda: kind.start(self._first, self._rule, device))

    def _start_as_torch(self, device: torch.device) -> Register[AnyVersion]:
        """Make the first version by torch's name for that, where a subclass overrides it."""
        if not self._is_ours("_lazy_init_scale_growth_tracker"):
            self._lazy_init_scale_growth_tracker(device)
        return self._iterations.register or self._start(device)

    def begin_iteration(self, timeout: float | None = None) -> ScaleTicket:
        """Begin an iteration and return its ticket.

        After this call, `scale` and `update` require tickets. The call waits until at most `depth` tickets are
        outstanding. A disabled scaler returns a ticket without effect.

        Args:
            timeout: Maximum time to wait in seconds; None waits indefinitely.

        Returns:
            Ticket: The ticket of the iteration.

        Raises:
            TimeoutError: If the scale is not known after `timeout` seconds.
            ClosedError: If the scaler was closed, or its background work failed.
        """
        if not self._enabled:
            return _NO_TICKET
        register = self._iterations.register or self._start_as_torch(torch.device(self._device))
        self._iterations.by_ticket = True
        return register.begin(timeout)

    # --------------------------------------------------------------------------------------------- scale

    def scale(self, outputs: Any, ticket: ScaleTicket | None = None) -> Any:
        """Multiply a tensor, or tensors in nested iterables, by the loss scale.

        Args:
            outputs: A tensor of any shape, or nested iterables of tensors.
            ticket: Ticket of the iteration; required after `begin_iteration`.

        Returns:
            The scaled tensors, with dtypes as in torch.

        Raises:
            ValueError: If `outputs` has an object that is neither a tensor nor an iterable.
            RuntimeError: If a ticket is missing, or is not outstanding.
        """
        if not self._enabled:
            return outputs
        if not isinstance(outputs, Tensor):
            if not isinstance(outputs, Iterable):
                raise refusals.NOT_A_LOSS.error()
            each = map(
                partial(GradScaler.scale, self, ticket=ticket), outputs
            )  # a subclass counts one call
            return type(outputs)(each) if isinstance(outputs, (list, tuple)) else each
        if ticket is not None:
            self._iterations.checked("scale", ticket)
        else:
            self._iterations.needs_no_ticket("scale")
            if self._iterations.register is None:
                self._start_as_torch(outputs.device)
            ticket = self._iterations.stepping("scale", None)
        if self._by_hand is not None:
            raise _written_late("scale")
        self._scaled = ticket
        scaled = outputs * ticket.value.scale_on(outputs.device)
        if scaled.requires_grad:
            self._owners.watch(scaled, ticket)
        return scaled

    def loss_value(self, loss: Tensor, ticket: ScaleTicket | None = None) -> Tensor:
        """Return the unscaled loss: `loss` divided by the scale it was multiplied by.

        Correct anywhere in the loop, also after `update`; waits for no device. In contrast,
        ``loss.item() / scaler.get_scale()`` after ``update()`` is wrong if the scale changed.

        Args:
            loss: Scaled loss of any shape.
            ticket: Ticket of the iteration; default: the one that `scale` used last.

        Returns:
            Detached tensor of the same shape.

        Raises:
            RuntimeError: If the scaler is `capturable` and `update` was called.
        """
        ticket = ticket or self._scaled
        if not self._enabled or ticket is None:
            return loss.detach()
        if ticket.value.in_place:  # update() writes the scale
            self._iterations.checked("loss_value", ticket)
        return loss.detach() / ticket.value.scale_on(loss.device)

    # ----------------------------------------------------------------------------------- unscale and step

    def unscale_(self, optimizer: Optimizer, ticket: ScaleTicket | None = None) -> None:
        """Divide the gradients by the loss scale in place, and record whether all were finite.

        Args:
            optimizer: Optimizer whose gradients to unscale.
            ticket: Ticket of the iteration, for loops with tickets.

        Raises:
            RuntimeError: If the gradients were already unscaled or stepped, or belong to another iteration.
            ValueError: If a gradient is float16 and `allow_fp16` is False.
        """
        if self._enabled:
            ticket = self._iterations.stepping("unscale_", ticket)
            self._holding("unscale_", optimizer, ticket, OptimizerStep.divide_gradients)

    def unscale_and_clip_(
        self, optimizer: Optimizer, max_norm: float | Tensor, ticket: ScaleTicket | None = None
    ) -> Tensor:
        """Unscale and clip gradients in one pass.

        Equivalent to `unscale_` and ``torch.nn.utils.clip_grad_norm_``, with one read of the gradients. The kernel of
        a fused optimizer does both multiplications, so ``.grad`` stays scaled until `step`. Gradients of other
        optimizers are unscaled and clipped here, in one write.

        Args:
            optimizer: Optimizer whose gradients to unscale and clip.
            max_norm: Maximum 2-norm of all gradients, at least 0. An invalid value in a tensor on another device than
                the CPU, which is not waited for, skips the step.
            ticket: Ticket of the iteration, for loops with tickets.

        Returns:
            Tensor of shape () and dtype float32: the 2-norm of all unscaled gradients before the clip.

        Raises:
            TypeError: If `max_norm` is no number.
            ValueError: If `max_norm` is NaN or negative.
            RuntimeError: If the gradients were already unscaled or stepped, or belong to another iteration.
        """
        max_norm = config.check_max_norm(max_norm)
        if not self._enabled:
            params = [p for group in optimizer.param_groups for p in group["params"]]
            return torch.nn.utils.clip_grad_norm_(params, max_norm)  # type: ignore[arg-type]
        ticket = self._iterations.stepping("unscale_", ticket)
        return self._holding(
            "unscale_", optimizer, ticket, lambda step: step.divide_and_clip(max_norm)
        )

    def step(
        self, optimizer: Optimizer, *args: Any, ticket: ScaleTicket | None = None, **kwargs: Any
    ) -> Any:
        """Step the optimizer, or skip the step if any gradient is not finite.

        Unscales the gradients first if `unscale_` was not called. With `launch`, the step runs on the thread that owns
        the optimizer, and the caller waits for it.

        Args:
            optimizer: Optimizer to step.
            args: Positional arguments of ``optimizer.step``; no closure.
            ticket: Ticket of the iteration, for loops with tickets.
            kwargs: Keyword arguments of ``optimizer.step``.

        Returns:
            The result of ``optimizer.step``; None for a skipped step, or if the step ran on another thread.

        Raises:
            RuntimeError: If the optimizer already stepped, a closure is passed, or the gradients belong to
                another iteration.
            AssertionError: If no gradient was checked, as in torch.
        """
        if ticket is not None and not isinstance(ticket, Ticket):  # the optimizer's own keyword
            kwargs["ticket"], ticket = ticket, None
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or (not self._options.exact_torch and args and callable(args[0])):
            raise refusals.CLOSURE.error()
        ticket = self._iterations.stepping("step", ticket)
        overridden = getattr(self.unscale_, "__func__", None) is not GradScaler.unscale_
        by_override = overridden and not is_fused(optimizer)
        if by_override and self._records.stage(ticket.index, optimizer) is Stage.READY:
            self.unscale_(optimizer, **({"ticket": ticket} if self._iterations.by_ticket else {}))
        result = self._holding(
            "step", optimizer, ticket, partial(self._take, ticket, args, kwargs, not by_override)
        )
        return result if self._launcher.here() else None

    def _take(
        self, ticket: ScaleTicket, args: Args, kwargs: Kwargs, divides: bool, step: OptimizerStep
    ) -> object:
        if (
            self._launcher.remote or self._iterations.by_ticket
        ):  # another stream may have made the gradients
            ticket.value.keep(every_gradient(step.record.optimizer))
        result = step.take(args, kwargs, divides=divides)
        self._stepped(ticket.index, step.record)
        return result

    def _stepped(self, ticket: int, record: Record) -> None:
        self._owners.release(record.optimizer)
        with self._lock:
            self._report = self._report.adding(ticket, record)

    def _holding(
        self,
        name: str,
        optimizer: Optimizer,
        ticket: ScaleTicket,
        work: Callable[[OptimizerStep], T],
    ) -> T:
        """Run `work` on an optimizer's gradients, on the thread that owns it, one call at a time."""
        if self._by_hand is not None:
            raise _written_late(name)
        if self._launcher.remote:
            return self._launcher.call(self._held, name, optimizer, ticket, work)
        return self._held(name, optimizer, ticket, work)

    def _held(
        self,
        name: str,
        optimizer: Optimizer,
        ticket: ScaleTicket,
        work: Callable[[OptimizerStep], T],
    ) -> T:
        owned = self._owners.may_refuse and name != CHECK  # which divides nothing
        if owned and (
            self._records.stage(ticket.index, optimizer) is Stage.READY or is_fused(optimizer)
        ):
            self._owners.check_owner(optimizer, ticket)
        check = partial(self._iterations.checked, name, ticket)
        return self._records.holding(
            ticket.index, optimizer, check, partial(self._with_step, ticket, work)
        )

    def _with_step(
        self, ticket: ScaleTicket, work: Callable[[OptimizerStep], T], record: Record
    ) -> T:
        show = partial(self._show, ticket, record.optimizer) if self._observers else None
        given = (self._rule, self._means, self._overrides(), show)
        return work(OptimizerStep(ticket.index, ticket.value, record, *given))

    def _show(self, ticket: ScaleTicket, optimizer: Optimizer) -> None:
        for observer in [*self._observers.values()]:
            observer.gradients(ticket, optimizer, ticket.value.scale_on(ticket.value.device))

    @property
    def last_step(self) -> StepReport:
        """Report of the newest iteration's steps: ``.skipped``, ``.skipped_by(optimizer)``."""
        return self._report

    def observe(self, observer: Observer) -> Callable[[], object]:
        """Notify `observer` of each step from now on; copies and pickles are not observed.

        Args:
            observer: Object with the methods of `ampsim.torch.observer.Observer`.

        Returns:
            Function that removes the observer.

        Raises:
            ValueError: If the scaler is `capturable`, as a graph replay runs no Python code.
        """
        if self._enabled and self._options.capturable:
            raise ValueError(
                "a capturable scaler: expected one without capturable=True; a graph replay runs no Python code"
            )
        key = object()
        self._observers[key] = observer
        return partial(self._observers.pop, key, None)

    # -------------------------------------------------------------------------------------------- update

    def update(
        self,
        new_scale: float | Tensor | None = None,
        is_async: bool = True,
        ticket: ScaleTicket | None = None,
    ) -> None:
        """End the iteration: grow or back off the scale, or set it to `new_scale`.

        With `launch`, the update runs after the steps on the optimizer's thread.

        Args:
            new_scale: Scale to set, copied at once; None updates the scale by the gradients' found_inf.
            is_async: Whether the update may run later. False waits for it, and the next ticket then uses its result,
                whatever the depth.
            ticket: Ticket of the iteration, for loops with tickets.

        Raises:
            AssertionError: If no gradient was checked in the iteration, as in torch.
            RuntimeError: If a ticket is missing, or is not the next one.
            TypeError: If `new_scale` is no number.
            ValueError: If `new_scale` is out of bounds.
        """
        if not self._enabled:
            return
        self._iterations.check_thread(ticket)
        register, by_hand = self._iterations.started("update"), None
        if new_scale is not None:
            value = config.new_scale_by_value(new_scale, self._device, self._rule, self._options)
            by_hand = lambda version: version.override(self._rule, value)  # noqa: E731
        elif not (
            self._launcher.remote or self._records.any_from(register.applied)
        ):  # before a ticket is begun for it
            raise refusals.NOTHING_CHECKED_AT_ALL.error()
        self._end(ticket, by_hand, is_async)

    def _end(
        self, ticket: ScaleTicket | None, by_hand: ByHand | None, is_async: bool = True
    ) -> None:
        ended = self._iterations.ending(ticket)
        for observer in [*self._observers.values()]:
            observer.closing(ended)
        if self._launcher.here():
            self._finish(ended, by_hand, is_async)
        else:
            done = self._iterations.ask(
                ended, partial(self._finish, ended, by_hand, is_async), is_async
            )
            if not is_async:
                done.result()

    def _finish(self, ticket: ScaleTicket, by_hand: ByHand | None, is_async: bool) -> None:
        register = self._iterations.started("update")
        with (
            self._records.lock
        ):  # later calls find the ticket closed and must not begin another record
            outcome, rule = self._records.outcome(ticket.index, is_async), self._rule
            if by_hand is None and not outcome.flags:
                raise refusals.NOTHING_CHECKED_AT_ALL.error()

            records = self._records.of(ticket.index)
            self._owners.leave(ticket, records)

            def advance(version: AnyVersion) -> AnyVersion:
                version = self._by_hand or version
                if by_hand is not None:
                    return by_hand(version)
                config.check_min_scale(self._options.on_min_scale, rule, version, outcome.flags)
                return version.next(rule, outcome)

            register.apply(ticket, advance, is_async=is_async)
            self._by_hand = None
            self._records.close(ticket.index)
        for observer in [*self._observers.values()]:
            used = (record for record in records if record.is_used)
            observer.closed(
                ticket, [(record.optimizer, [*record.found_inf.values()]) for record in used]
            )

    def synchronize(self) -> None:
        """Wait for all work on the optimizer's thread; raise its error if it failed."""
        self._iterations.synchronize()

    # ------------------------------------------------------------------------------------------- reading

    def get_scale(self, up_to_date: bool = False) -> float:
        """Return the loss scale; waits for the device.

        Args:
            up_to_date: Whether to wait for pending updates and return the newest scale.

        Returns:
            On the optimizer's thread, the scale that divides the next gradients; elsewhere, the scale of the next
            loss. In loops with tickets, the newest scale. 1.0 if disabled.
        """
        if not self._enabled:
            return 1.0
        self._settle(up_to_date)
        register = self._iterations.register
        if register is None:
            scale: float = self._first[-1].newest if up_to_date else self._first[0].scale
        else:
            newest = register.newest if up_to_date else self._iterations.seen_here(register)
            scale = (self._by_hand or newest).number()
        return scale

    def get_growth_factor(self, up_to_date: bool = False) -> float:
        """Return the growth factor; `up_to_date` waits for pending changes."""
        self._settle(up_to_date)
        return self._growth_factor

    def get_backoff_factor(self, up_to_date: bool = False) -> float:
        """Return the backoff factor; `up_to_date` waits for pending changes."""
        self._settle(up_to_date)
        return self._backoff_factor

    def get_growth_interval(self, up_to_date: bool = False) -> int:
        """Return the growth interval; `up_to_date` waits for pending changes."""
        self._settle(up_to_date)
        return self._growth_interval

    def _settle(self, up_to_date: bool) -> None:
        if up_to_date and self._enabled:
            self.synchronize()

    # -------------------------------------------------------------------------- saving, loading, the end

    def _states(self) -> checkpoint.States:
        """Return what the versions of the next ticket and every newer one are made of again. Waits for the device."""
        register = self._iterations.register
        if register is None:
            return self._first
        *older, newest = register.pending() if self._options.depth else (register.newest,)
        return (*(version.read() for version in older), newest.saved())

    def state_dict(self) -> dict[str, Any]:
        """Return the state as a dict; waits for the optimizer's thread.

        Returns:
            torch's five keys, and with depth > 0 ``pending``: the scales that are computed and not yet used. For a
            policy, its name, its numbers, and its state. {} if disabled.

        Raises:
            RuntimeError: If depth > 0 and a ticket is outstanding.
        """
        if not self._enabled:
            return {}
        self.synchronize()
        own = (
            {}
            if self._is_ours("get_scale") or isinstance(self._rule, Policy)
            else {"scale": self.get_scale()}
        )
        return checkpoint.to_dict(self._rule, self._states(), self._options.depth) | own

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class or of torch's scaler; see 7 in Differences.

        Args:
            state_dict: Result of `state_dict`. Of more pending scales than `depth` allows, the newest are used. With a
                group, all ranks must load equal dicts.

        Raises:
            KeyError: If a key is missing.
            RuntimeError: If the dict is empty.
            TypeError: If a value has an invalid type.
            ValueError: If a value is out of bounds, or belongs to another policy.
        """
        if not self._enabled:
            return
        self.synchronize()
        rule, states = checkpoint.from_dict(state_dict, self._rule, self._options)
        if self._ranks:
            self._ranks.check_equal("load_state_dict", {**config.named(rule), "states": states})
        newest = (
            None
            if self._iterations.register is None
            else self._iterations.started("load_state_dict").newest
        )
        versions = () if newest is None else newest.restored(states, rule)
        goes_on = not self._iterations.by_ticket  # the iteration, as in torch
        records = self._records.renewed(ticket=len(versions) - 1 if goes_on else None)
        if goes_on:
            for ticket in (
                () if newest is None else self._iterations.started("load_state_dict").outstanding()
            ):
                self._owners.swap(ticket, self._records.of(ticket.index))
        changed: dict[str, Any] = {
            "_rule": rule,
            "_first": states,
            "_records": records,
            "_by_hand": None,
        }
        if self._options.capturable:
            changed["_report"] = replace(
                self._report, ticket=-1
            )  # graphs still write it; tickets restart from 0
        else:
            changed["_report"] = StepReport()
        self._iterations.restore(versions, partial(vars(self).update, changed))

    def __getstate__(self) -> dict[str, Any]:
        if self._ranks:
            raise TypeError(
                "a scaler with a group cannot be pickled: save its state_dict() instead"
            )
        kept = {name: value for name, value in vars(self).items() if name not in _MADE_ANEW}
        if hasattr(self, "_rule"):  # if not, it was disabled when it was made
            self.synchronize()
            register = self._iterations.register
            if self._enabled and register is not None and self._records.any_from(register.applied):
                raise refusals.PICKLED_LATE.error()
            kept["_first"] = self._states()
            kept |= checkpoint.as_torch_has_it(self._rule, kept["_first"])
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._ranks = None
        self._reset(launch=None)  # a thread is not pickled: the copy works on its caller's thread
        if hasattr(self, "_rule"):  # changes of a subclass to torch's names take effect
            for name in checkpoint.as_torch_has_it(self._rule, self._first):
                value = vars(self).pop(name, None)
                if value is not None and value != getattr(self, name):
                    setattr(self, name, value)

    def after_fork(self) -> None:
        """Recreate the locks in a forked child, which has no optimizer's thread."""
        self._lock = self._sync.Lock()
        self._records.after_fork()
        self._iterations.after_fork()

    def close(self) -> None:
        """Close the scaler: later calls raise ClosedError, and waiting threads wake up. Idempotent."""
        self._iterations.close()


def _written_late(name: str) -> RuntimeError:
    return RuntimeError(
        f"{name}() after _scale or _growth_tracker was set between scale() and update(): expected an update() "
        "that ends by clearing _per_optimizer_states; set them in it"
    )


_NO_TICKET: ScaleTicket = Ticket(0, 0, HostVersion(State(1.0)))  # of every disabled scaler
_MADE_ANEW = {
    "_by_hand", "_iterations", "_launcher", "_lock", "_means", "_observers", "_owners", "_ranks", "_records",
    "_report", "_scaled",
}  # fmt: skip
