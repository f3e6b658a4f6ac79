"""A loss scaler for loops whose backward passes, steps, and updates run on several threads."""

import threading
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.core import refusals
from ampsim.core.machine import SETTABLE, State
from ampsim.core.pipeline import WouldBlockError
from ampsim.core.validation import as_int
from ampsim.torch.async_state import (
    AsyncState,
    Call,
    ClosedError,
    Stage,
    StepRecord,
    Ticket,
    WithdrawnError,
)
from ampsim.torch.bounds import (
    SMALLEST_NORMAL,
    check_max_norm,
    check_scale,
    check_state_dict,
    loss_scale_error,
    make_rule,
)
from ampsim.torch.gradients import clip, collect, unscale
from ampsim.torch.gradients.divided import divide_, mark, new_key, undivided
from ampsim.torch.optimizer_thread import Job, OnError, OptimizerThread
from ampsim.torch.shared_state import SharedState
from ampsim.torch.step_report import StepReport
from ampsim.torch.streams import Flag, has_streams
from ampsim.torch.ticket_tags import check_tags, tag_gradients_of

_CPU = torch.device("cpu")
Launch = Callable[[Callable[[], object]], object]
Work = Callable[[Call, StepRecord], Any]


class AsyncGradScaler:
    """A loss scaler like `torch.amp.GradScaler`, for any depth and any number of threads.

    Each iteration holds a ticket. Iteration i uses the scale after ``max(0, i - depth)`` updates,
    and updates apply in the order of the tickets, so the scales depend on the outcomes and the
    depth, and not on the schedule of threads::

        ticket = scaler.begin_iteration()             # waits while depth + 1 are in flight
        scaler.scale(loss, ticket=ticket).backward()  # compute thread
        scaler.step(optimizer, ticket=ticket)         # optimizer thread
        scaler.update(ticket=ticket)

    Without tickets a call means the oldest iteration in flight; with an executor, a call of another
    thread than the executor's means the oldest one whose update was not called. So torch's loop
    runs unchanged with depth 0, and RoundPipe's with depth 1 and an executor.

    A gradient that a backward pass wrote is divided once, by the scale of its own ticket, or a call
    raises. With reentrant checkpoints and ``depth`` > 0 a wrong ticket is not detected. A skipped
    step changes no bit of the parameters or the optimizer's state. A call that raises changes
    neither the scale nor the stage of an optimizer. If the optimizer's thread fails, the scaler
    closes with that cause; `state_dict` still works, and a new scaler resumes from it.

    Args:
        device: Device type of the scale. "cpu" keeps it as a Python number.
        init_scale: Initial loss scale, a positive factor within the bounds.
        growth_factor: Factor of a growth; above 1.
        backoff_factor: Factor of a backoff; above 0 and below 1.
        growth_interval: Number of consecutive finite steps before a growth; at least 1.
        enabled: If False, all methods pass their inputs through.
        depth: Number of updates by which the scale may lag; at least 0. 0 is torch's loop, 1 is
            RoundPipe's.
        min_scale: Lower bound of the scale; at least 2^-126, the default.
        max_scale: Upper bound of the scale; default: the largest float32 number.
        executor: Where the optimizer runs: an `OptimizerThread`, an `Executor` with one worker, or
            a function that runs functions in order on one thread, such as RoundPipe's
            ``launch_optim_kernel``. Default: the calling thread.
        allow_fp16: Whether to unscale float16 gradients instead of raising.
        check_at_step: Whether `step` checks gradients again that `unscale_` has checked, because
            the loop may have written them.

    Raises:
        AssertionError: With torch's text, if `growth_factor` is at most 1 or `backoff_factor` at
            least 1.
        ValueError: If another number is out of range, if an executor has several workers, or if the
            work of several iterations in flight cannot be ordered on `device`.
    """

    # =================== =================================== ====================================
    # attribute           written                             read
    # =================== =================================== ====================================
    # `_shared`           by transitions of `AsyncState`      anywhere
    # `_thread`           by the executor's first job         anywhere
    # `_last_scaled`      by `scale`, `load_state_dict`       by `loss_value`, the optimizer's thread
    # all others          by `__init__`                       anywhere
    # =================== =================================== ====================================
    #
    # `_last_scaled` needs no lock: it is one reference to an immutable `Ticket`. The optimizer's
    # thread reads it only with depth=0, where `scale` gets a new ticket after the `update` of the
    # one in work, and `load_state_dict` waits for that thread before it writes.

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
        min_scale: float = SMALLEST_NORMAL,
        max_scale: float | None = None,
        executor: OptimizerThread | Executor | Launch | None = None,
        allow_fp16: bool = False,
        check_at_step: bool = False,
    ) -> None:
        depth = as_int("depth", depth, 0, "to run synchronously pass depth=0")
        constants = (init_scale, growth_factor, backoff_factor, growth_interval)
        rule = make_rule(*constants, min_scale=min_scale, max_scale=max_scale)
        self._device = torch.device(device)
        self._allow_fp16 = allow_fp16
        self._check_at_step = check_at_step
        is_missing = self._device.type != "cpu" and not torch.accelerator.is_available()
        if enabled and is_missing:
            text = f"no {device} is available: the scaler is disabled"
            warnings.warn(text, stacklevel=2)
            enabled = False
        self._enabled = enabled
        if enabled and (depth or executor is not None):
            _check_order(self._device)
        self._shared: SharedState[AsyncState] = SharedState(
            AsyncState(rule, depth, (rule.init(),)), threading
        )
        self._last_scaled: Ticket | None = None
        self._thread: int | None = None
        self._launch = _launch_function(executor)
        if enabled and self._launch is not None:
            self._launch(self._note_thread)  # first, so later jobs find it noted
        if isinstance(executor, OptimizerThread):
            executor.scalers.add(self)

    def _note_thread(self) -> None:
        self._thread = threading.get_ident()

    def _runs_steps(self) -> bool:
        """Return whether the calling thread is the one on which the optimizer runs."""
        return self._launch is None or self._thread == threading.get_ident()

    # ----------------------------------------------------------------------------------- iterations

    def begin_iteration(self, timeout: float | None = None) -> Ticket:
        """Begin an iteration; wait while depth + 1 iterations are in flight.

        After this call `scale` and `update` require tickets.

        Args:
            timeout: Maximum time to wait in seconds; None waits indefinitely.

        Returns:
            Ticket: The ticket of the iteration. Of a disabled scaler it has no effect.

        Raises:
            TimeoutError: If the scale of the iteration does not exist after `timeout` seconds.
            ClosedError: If the scaler was closed, or its background work failed.
        """
        if not self._enabled:
            return Ticket(0, 0, State(1.0), 0)
        key = new_key()
        try:
            state = self._shared.wait(lambda state: state.begin(key), timeout)
            return next(one.ticket for one in state.iterations if one.ticket.key == key)
        except WouldBlockError as error:
            raise TimeoutError(f"no ticket after {timeout} s: {error}") from None
        except BaseException:
            self._shared.change(AsyncState.withdraw, key)
            raise

    def _ticket(self, method: str, ticket: Ticket | None) -> Ticket:
        """Return the ticket of a call; without one, the implied ticket, begun if there is none."""
        state = self._shared.value
        state.check_open()
        if not state.is_started and method != "scale":
            raise refusals.before_scale(method).error()
        if ticket is not None:
            return state.iteration(ticket, method).ticket
        if state.uses_tickets:
            raise RuntimeError(
                f"{method} without a ticket in a loop with tickets: expected ticket=, which "
                "begin_iteration() returned for this iteration"
            )
        runs_steps = self._runs_steps()
        implied = state.implied_ticket(runs_steps=runs_steps)
        if implied is None:
            key = new_key()
            state = self._shared.wait(
                lambda state: state.begin_if_none(key, runs_steps=runs_steps)
            )
            implied = state.implied_ticket(runs_steps=runs_steps)
            assert implied is not None  # noqa: S101
        return implied

    # --------------------------------------------------------------------------------------- losses

    def scale(self, outputs: Any, ticket: Ticket | None = None) -> Any:
        """Multiply outputs by the scale.

        Args:
            outputs: Tensor, or nested iterables of tensors.
            ticket: Ticket of the iteration, for loops with tickets.

        Returns:
            The scaled outputs: a list or a tuple of a list or a tuple, a generator of another
                iterable.

        Raises:
            ValueError: If `outputs` holds something else than tensors.
            RuntimeError: If a ticket is missing, or its iteration is over.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return self._scale_tensor(outputs, ticket)
        if isinstance(outputs, str) or not isinstance(outputs, Iterable):
            raise refusals.NOT_A_LOSS.error()
        scaled = (self.scale(output, ticket) for output in outputs)
        return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled

    def _scale_tensor(self, outputs: Tensor, ticket: Ticket | None) -> Tensor:
        ticket = self._last_scaled = self._ticket("scale", ticket)
        state = self._shared.value
        if any(record.is_broken for record in state.iteration(ticket, "scale").records):
            self._shared.change(AsyncState.forget_broken, ticket)
        scaled = outputs * _scale_on(ticket, outputs.device)
        if state.depth:
            tag_gradients_of(outputs, scaled, ticket.key)
        return scaled

    def loss_value(self, loss: Tensor, ticket: Ticket | None = None) -> Tensor:
        """Return the true value of a scaled loss, after `update` too; the host does not wait.

        Args:
            loss: Scaled loss.
            ticket: Ticket that scaled it; by default the one that `scale` used last.

        Returns:
            The loss divided by its scale, detached.
        """
        ticket = ticket or self._last_scaled
        if ticket is None or not self._enabled:
            return loss.detach()
        return loss.detach() / _scale_on(ticket, loss.device)

    # ---------------------------------------------------------------------------------------- steps

    def unscale_(self, optimizer: Optimizer, ticket: Ticket | None = None) -> None:
        """Divide an optimizer's gradients by the scale in place, and record whether all are finite.

        Args:
            optimizer: Optimizer that owns the gradients.
            ticket: Ticket of the iteration, for loops with tickets.

        Raises:
            AssertionError: If nothing was scaled yet, as in torch.
            RuntimeError: If the gradients were unscaled or stepped before, or belong to another
                ticket.
            ValueError: If a gradient is float16, unless `allow_fp16`.
        """
        if self._enabled:
            self._work_on("unscale_", optimizer, ticket, self._unscale)

    def _unscale(self, call: Call, record: StepRecord) -> None:
        _check_ready(record)
        self._complete(call, Stage.UNSCALED, self._divide(call))

    def unscale_and_clip_(
        self, optimizer: Optimizer, max_norm: float, ticket: Ticket | None = None
    ) -> Tensor:
        """Unscale gradients and clip their total norm.

        Args:
            optimizer: Optimizer that owns the gradients.
            max_norm: Largest norm after the clip; at least 0, and inf for no clip.
            ticket: Ticket of the iteration, for loops with tickets.

        Returns:
            The norm of the unscaled gradients before the clip; shape (), float32.

        Raises:
            ValueError: If `max_norm` is negative or NaN.
            RuntimeError: As `unscale_`; also if another optimizer has divided one of the gradients.
        """
        limit = check_max_norm(max_norm)
        if not self._enabled:
            params = collect.parameters(optimizer)
            return torch.nn.utils.clip_grad_norm_(params, limit)
        work = partial(self._unscale_and_clip, limit)
        norm: Tensor = self._work_on("unscale_and_clip_", optimizer, ticket, work)
        return norm

    def _unscale_and_clip(
        self, max_norm: float, call: Call, record: StepRecord
    ) -> Tensor:
        _check_ready(record)
        groups = self._groups(call)
        if undivided(call.optimizer, call.ticket.key) is not None:
            raise clip.divided_error()
        call.is_writing = True
        clipped = clip.unscale_and_clip_(
            groups,
            _scale_on(call.ticket, _CPU),
            max_norm,
            folds=False,
            may_be_below_one=call.ticket.value.scale < 1.0,
        )
        self._complete(call, Stage.UNSCALED, _flags(clipped.found_inf))
        return clipped.norm

    def step(
        self,
        optimizer: Optimizer,
        *args: Any,
        ticket: Ticket | None = None,
        **kwargs: Any,
    ) -> Any:
        """Step an optimizer with unscaled gradients, or skip the step if one is not finite.

        Args:
            optimizer: Optimizer that owns the gradients; `unscale_` is called for it if it was not.
            args: Positional arguments of ``optimizer.step``; no closure.
            ticket: Ticket of the iteration, for loops with tickets.
            kwargs: Keyword arguments of ``optimizer.step``; no closure.

        Returns:
            What ``optimizer.step`` returned; None if the step was skipped, and if the call waited
            for an executor.

        Raises:
            AssertionError: If the optimizer has no gradient, as in torch.
            RuntimeError: If the optimizer has stepped in this iteration, or the gradients belong to
                another ticket.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or any(map(callable, args[:1])):
            raise refusals.CLOSURE.error()
        result = self._work_on(
            "step", optimizer, ticket, partial(self._step, args, kwargs)
        )
        return result if self._runs_steps() else None

    def _step(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Call,
        record: StepRecord,
    ) -> Any:
        if record.stage is Stage.STEPPED:
            raise refusals.STEPPED_TWICE.error()
        optimizer = call.optimizer
        flags = record.flags
        if record.stage is Stage.READY:
            flags = self._divide(call)
        elif self._check_at_step:
            found_inf = unscale.FoundInf()
            unscale.check(self._groups(call), found_inf)
            flags += _flags(found_inf)
        if not flags:  # torch leaves the optimizer in this stage too
            self._complete(call, Stage.UNSCALED, flags)
            raise refusals.NOTHING_CHECKED.error()
        result = None
        skips = any(flags)
        if not skips:
            if getattr(optimizer, "_step_supports_amp_scaling", False):
                collect.lay_out_for_kernel(optimizer)
            call.is_writing = True
            try:
                result = optimizer.step(*args, **kwargs)
            except Exception:
                self._complete(call, Stage.UNSCALED, flags)
                raise
        self._complete(call, Stage.STEPPED, (skips,))
        return result

    def _work_on(
        self, method: str, optimizer: Optimizer, ticket: Ticket | None, work: Work
    ) -> Any:
        """Do work on an optimizer's gradients, without the lock, on the thread of the optimizer."""
        call = Call(self._ticket(method, ticket), optimizer, method)
        run = partial(self._hold, call, work)
        return run() if self._runs_steps() else self._send(run).result()

    def _hold(self, call: Call, work: Work) -> Any:
        ticket = call.ticket
        try:
            state = self._shared.change(AsyncState.hold, call)
            record = state.iteration(ticket, call.method).record(call.optimizer)
            if record.stage is Stage.READY:
                for observer in state.observers:
                    scale = _scale_on(ticket, self._device)
                    observer.gradients(ticket, call.optimizer, scale)
            return work(call, record)
        finally:
            call.is_over = True

    def _complete(self, call: Call, stage: Stage, flags: tuple[Any, ...]) -> None:
        self._shared.change(AsyncState.complete, call, stage, flags)

    def _groups(self, call: Call) -> collect.Groups:
        """Return an optimizer's gradients, kept until this thread's stream is done with them."""
        if self._shared.value.depth:
            check_tags(call.optimizer, call.ticket.key)
        else:
            self._check_loss_scale(call.ticket)
        params = collect.parameters(call.optimizer)
        groups = collect.group(params, allow_fp16=self._allow_fp16, sums=True)
        for (device, _), grads in groups.items():
            if has_streams(device):
                stream = torch.accelerator.current_stream(device)
                for grad in grads:
                    grad.record_stream(stream)
        return groups

    def _check_loss_scale(self, ticket: Ticket) -> None:
        """Raise for gradients of a loss from before an update that changed the scale."""
        last = self._last_scaled
        if last is None or last is ticket:
            return
        loss_scale = last.value.scale
        scale = ticket.value.scale
        if loss_scale != scale:
            raise loss_scale_error(loss_scale, scale)

    def _divide(self, call: Call) -> tuple[Any, ...]:
        """Divide an optimizer's gradients that no other call has divided."""
        scale = call.ticket.value.scale
        key = call.ticket.key
        optimizer = call.optimizer
        groups = self._groups(call)
        rest = undivided(optimizer, key)
        inverse = _number_on(1.0 / scale, _CPU)
        call.is_writing = True
        found_inf = divide_(
            optimizer, groups, inverse, rest=rest, below_one=scale < 1.0
        )
        mark(optimizer, key, plain=groups.plain)
        return _flags(found_inf)

    @property
    def last_step(self) -> StepReport:
        """Report of the newest iteration with a step: ``.skipped``, ``.skipped_by(optimizer)``."""
        state = self._shared.value
        newest_first = [one.records for one in reversed(state.iterations)]
        for records in (*newest_first, state.last_steps):
            stepped = [each for each in records if each.stage is Stage.STEPPED]
            if stepped:
                return StepReport([(each.optimizer, each.flags) for each in stepped])
        return StepReport([])

    def observe(self, observer: Any) -> Callable[[], object]:
        """Notify an observer of gradients and updates from now on.

        A call of the scaler raises what a method of the observer raises.

        Args:
            observer: Object with three methods. ``gradients(ticket, optimizer, scale)`` reads
                complete gradients, which are about to be divided by `scale`, shape ().
                ``closing(ticket)`` notes a call of `update`, on its thread. ``closed(ticket,
                steps)`` gets pairs of an optimizer and a list of its flag, 0.0 or 1.0, shape (),
                after the update.

        Returns:
            Function that ends the notifications.
        """

        def add(state: AsyncState) -> AsyncState:
            return state.replace(observers=(*state.observers, observer))

        def remove(state: AsyncState) -> AsyncState:
            others = tuple(one for one in state.observers if one is not observer)
            return state.replace(observers=others)

        self._shared.change(add)
        return partial(self._shared.change, remove)

    # -------------------------------------------------------------------------------------- updates

    def update(
        self,
        new_scale: float | Tensor | None = None,
        is_async: bool = True,
        ticket: Ticket | None = None,
    ) -> None:
        """End an iteration: grow or back off the scale by what its steps found, or set it.

        With an executor the update runs behind the steps, and the call returns at once.

        Args:
            new_scale: Scale to set, read at once.
            is_async: Whether the update may run later. If False the call waits for it, and the next
                ticket uses its result, whatever the depth.
            ticket: Ticket of the iteration, for loops with tickets.

        Raises:
            AssertionError: If no gradient was checked in the iteration, as in torch.
            RuntimeError: If it is not the ticket's turn, a ticket is missing, or a step of the
                iteration still runs.
            TypeError: If `new_scale` is no number.
            ValueError: If `new_scale` is out of bounds.
        """
        if not self._enabled:
            return
        state = self._shared.value
        runs_steps = self._runs_steps()
        if ticket is None and runs_steps and self._launch is not None:
            raise RuntimeError(
                "update() without a ticket on the optimizer's thread: expected it on the thread "
                "that calls scale(); call it there, or pass ticket="
            )
        value = None
        if new_scale is not None:
            value = check_scale("new_scale", new_scale, state.rule)
        has_steps = any(iteration.records for iteration in state.iterations)
        if value is None and runs_steps and state.is_started and not has_steps:
            raise refusals.NOTHING_CHECKED_AT_ALL.error()  # before it begins an iteration
        ticket = self._ticket("update", ticket)
        for observer in state.observers:
            observer.closing(ticket)
        token = None if runs_steps else object()
        work = partial(self._finish, ticket, value, not is_async, token)
        if runs_steps:
            work()
        else:
            self._request(ticket, token, work, is_async=is_async)

    def _request(
        self,
        ticket: Ticket,
        token: object,
        work: Callable[[], None],
        *,
        is_async: bool,
    ) -> None:
        """Send an update to the optimizer's thread.

        If this raises, also by an interrupt, the update will not be made.
        """
        cancel = partial(self._shared.change, AsyncState.cancel_request, token)
        try:
            self._shared.change(AsyncState.request, ticket, token)
            # Nobody waits for an asynchronous update, so its error must close the scaler.
            on_error = self.close if is_async else lambda _: cancel()
            job = self._send(work, on_error)
        except BaseException:
            cancel()
            raise
        if not is_async:
            job.result()

    def _finish(
        self, ticket: Ticket, value: float | None, synchronous: bool, token: object
    ) -> None:
        with suppress(WithdrawnError):
            state = self._shared.change(
                AsyncState.update, ticket, token, value, synchronous=synchronous
            )
            for observer in state.observers:
                steps = []
                for record in state.last_steps:
                    found_inf = torch.tensor(any(record.flags)).float()
                    steps.append((record.optimizer, [found_inf]))
                observer.closed(ticket, steps)

    def _send(self, work: Callable[[], Any], on_error: OnError | None = None) -> Job:
        """Run work on the optimizer's thread.

        Its error goes to the thread that waits for the job, and to `on_error`.
        """
        self._shared.value.check_open()
        job = Job(work, self._shared, self._device, on_error or _ignore)
        assert self._launch is not None  # noqa: S101
        handle = self._launch(job)
        if isinstance(handle, Future):
            handle.add_done_callback(partial(_end_if_dropped, job))
        return job

    def synchronize(self) -> None:
        """Wait for all work that was sent to the optimizer's thread.

        Raises:
            ClosedError: If background work failed; the cause is its error.
        """
        self._settle()
        state = self._shared.value
        if state.closed is not None and state.closed.__cause__ is not None:
            state.check_open()

    def _settle(self) -> None:
        """Wait for the optimizer's thread; of a closed scaler nothing is on its way."""
        is_closed = self._shared.value.closed is not None
        if not self._enabled or self._runs_steps() or is_closed:
            return
        with suppress(RuntimeError):  # the thread has ended, and all that was sent
            self._send(_do_nothing).result()

    # ------------------------------------------------------------------------ reading and constants

    def is_enabled(self) -> bool:
        """Return whether the scaler is enabled."""
        return self._enabled

    def get_scale(self, up_to_date: bool = False) -> float:
        """Return the loss scale; waits for the device.

        Args:
            up_to_date: Whether to wait for updates on their way, and return the newest scale.

        Returns:
            The scale that the next call of this thread uses; in loops with tickets, the newest
            scale. 1.0 if disabled.
        """
        if not self._enabled:
            return 1.0
        if up_to_date:
            self._settle()
        state = self._shared.value
        if up_to_date or state.uses_tickets or state.closed is not None:
            return state.newest.scale
        ticket = state.implied_ticket(runs_steps=self._runs_steps())
        if ticket is not None:
            return ticket.value.scale
        return self._shared.wait(_check_next_value).next_value().scale

    def get_growth_factor(self, up_to_date: bool = False) -> float:
        """Return the growth factor.

        Args:
            up_to_date: Whether to wait for changes on their way.

        Returns:
            The factor of a growth.
        """
        return self._get_constant("growth_factor", up_to_date)

    def get_backoff_factor(self, up_to_date: bool = False) -> float:
        """Return the backoff factor.

        Args:
            up_to_date: Whether to wait for changes on their way.

        Returns:
            The factor of a backoff.
        """
        return self._get_constant("backoff_factor", up_to_date)

    def get_growth_interval(self, up_to_date: bool = False) -> int:
        """Return the growth interval.

        Args:
            up_to_date: Whether to wait for changes on their way.

        Returns:
            The number of consecutive finite steps before a growth.
        """
        return int(self._get_constant("growth_interval", up_to_date))

    def _get_constant(self, name: str, up_to_date: bool) -> float:
        if up_to_date:
            self._settle()
        return float(getattr(self._shared.value.rule, name))

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the growth factor for the updates that are called later.

        Args:
            new_factor: Factor of a growth, above 1.
        """
        self._set_constant("growth_factor", new_factor)

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the backoff factor for the updates that are called later.

        Args:
            new_factor: Factor of a backoff, above 0 and below 1.
        """
        self._set_constant("backoff_factor", new_factor)

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the growth interval for the updates that are called later.

        Args:
            new_interval: Number of consecutive finite steps, at least 1.
        """
        self._set_constant("growth_interval", new_interval)

    def _set_constant(self, name: str, value: float) -> None:
        self._shared.value.rule.replace(**{name: value})  # raises on this thread

        def change(state: AsyncState) -> AsyncState:
            return state.replace(rule=state.rule.replace(**{name: value}))

        work = partial(self._shared.change, change)
        if self._runs_steps() or not self._enabled:
            work()
        else:
            self._send(work, self.close)

    # ------------------------------------------------------------------------------ saving, the end

    def state_dict(self) -> dict[str, Any]:
        """Return the state; waits for the optimizer's thread.

        Of a closed scaler it is the state after the last update that was made. Iterations in flight
        are not in it: a loop that resumes repeats them.

        Returns:
            torch's five keys, and with depth > 0 ``pending``, the scales that later iterations will
            use. {} if disabled.

        Raises:
            RuntimeError: If depth > 0 and iterations are in flight, unless the scaler is closed.
        """
        if not self._enabled:
            return {}
        self._settle()
        state = self._shared.value
        if state.depth and state.iterations and state.closed is None:
            raise RuntimeError(
                f"state_dict() before the update() of ticket {state.applied}: expected no "
                "iteration in flight; save after update()"
            )
        states = state.saved_versions()
        saved: dict[str, Any] = {"scale": states[0].scale}
        for name in SETTABLE:
            saved[name] = getattr(state.rule, name)
        saved["_growth_tracker"] = states[-1].growth_tracker
        if state.depth:
            saved["pending"] = [later.scale for later in states[1:]]
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class or of torch's scaler. Iterations in flight are void.

        Args:
            state_dict: Result of `state_dict`. Of more pending scales than `depth` allows, the
                newest are used.

        Raises:
            KeyError: If a key is missing.
            RuntimeError: If the dict is empty.
            ValueError: If a value is out of bounds.
        """
        if not self._enabled:
            return
        if not state_dict:
            raise refusals.EMPTY_STATE_DICT.error()
        self._settle()
        state = self._shared.value
        saved, rule = check_state_dict(state_dict, state.rule)
        later = saved.get("pending", ())
        scales = [saved["scale"]]
        scales += [check_scale("pending", scale, rule) for scale in later]
        tracker = saved["_growth_tracker"]
        kept = scales[-(state.depth + 1) :]
        versions = tuple(State(scale, tracker) for scale in kept)
        self._last_scaled = None
        self._shared.change(AsyncState.load, rule, versions)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a scaler with threads cannot be copied or pickled: expected its state; save "
            "state_dict(), and load it into a new scaler"
        )

    def close(self, cause: BaseException | None = None) -> None:
        """Take no more work; waiting threads raise ClosedError.

        Idempotent. Reading and `state_dict` still work.

        Args:
            cause: Why; the first cause stays.
        """
        closed = cause
        if cause is None:
            closed = ClosedError("it was closed")
        elif not isinstance(
            cause, ClosedError
        ):  # else the cause says that it was closed
            closed = ClosedError(f"its background work failed: {cause!r}")
            closed.__cause__ = cause
        self._shared.change(AsyncState.close, closed)


def _scale_on(ticket: Ticket, device: torch.device) -> Tensor:
    """Return a ticket's scale as torch multiplies by it: a float32 tensor, shape ()."""
    return _number_on(ticket.value.scale, device)


def _number_on(number: float, device: torch.device) -> Tensor:
    return torch.full((), number, dtype=torch.float32, device=device)


def _check_order(device: torch.device) -> None:
    """Raise ValueError for a device on which the work of several iterations cannot be ordered."""
    if device.type != "cpu" and not has_streams(device):
        accelerator = torch.accelerator.current_accelerator()
        raise ValueError(
            f"device={str(device)!r} with depth > 0 or an executor: expected 'cpu' or the "
            f"accelerator of this process ({accelerator}), because torch orders no work on other "
            "devices; pass depth=0"
        )


def _launch_function(executor: Any) -> Launch | None:
    """Return the function that runs another one on the thread of an executor."""
    workers = getattr(executor, "_max_workers", 1)
    if workers != 1:
        raise ValueError(
            f"executor with {workers} workers: expected one, which runs all jobs in order; pass "
            "ThreadPoolExecutor(1)"
        )
    submit = getattr(executor, "submit", executor)
    return getattr(executor, "launch", submit)  # type: ignore[no-any-return]


def _flags(found_inf: unscale.FoundInf) -> tuple[Flag, ...]:
    return tuple(map(Flag.of, found_inf.values()))


def _check_ready(record: StepRecord) -> None:
    if record.stage is Stage.UNSCALED:
        raise refusals.UNSCALED_TWICE.error()
    if record.stage is Stage.STEPPED:
        raise refusals.UNSCALED_LATE.error()


def _check_next_value(state: AsyncState) -> AsyncState:
    """Return the state if the scale of the next ticket exists, else raise WouldBlockError."""
    state.check_open()
    state.next_value()
    return state


def _end_if_dropped(job: Job, handle: Future[Any]) -> None:
    """End a job that its executor has dropped: jobs raise nothing, so the error is its own."""
    is_cancelled = handle.cancelled()
    cause = None if is_cancelled else handle.exception()
    if is_cancelled or cause is not None:
        dropped = RuntimeError(
            "the executor dropped a job: expected one that runs all jobs"
        )
        dropped.__cause__ = cause
        job.end(None, dropped)


def _do_nothing() -> None:
    """Run behind the jobs of an executor, to wait for them."""


def _ignore(_: BaseException) -> None:
    """Do nothing: the error reaches the thread that waits for the job."""
