"""The thread-safe, asynchronous loss scaler: torch.amp.GradScaler's interface over tickets."""

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
ByHand = Callable[[AnyVersion], AnyVersion]  # makes the version after an update whatever was found


class GradScaler(TorchNames):
    """A loss scaler for any depth and any number of threads; drop-in for torch.amp.GradScaler, and an instance of it.

    Guarantees:
        * Every gradient is divided by the scale its loss was multiplied by, whatever the schedule, or refused; see 15.
        * No optimizer steps with a gradient that is inf or NaN once unscaled, at any scale.
        * A skipped step changes no bit of parameters or optimizer state.
        * A tensor that was used as a scale is never written again, unless `capturable`.
        * A call that raises changes neither scale nor stages (gradients it was unscaling excepted).
        * With depth 0 the scales, the stages, the errors and their texts are torch's; see Differences.

    Assumes:
        * One optimizer is stepped by one thread at a time, and its gradients are complete by then.
        * No backward pass writes a ``.grad`` while a step reads it: gradients are handed over before. Such a race may
          end the process in torch itself, earlier than anything here could refuse it.
        * Gradients are not accumulated over an `update` that changes the scale.
        * An optimizer with ``_step_supports_amp_scaling`` divides and skips by what it is handed.
        * CUDA: the optimizers of one iteration step on one stream, or `update` is called behind all of theirs.
        * Updates come in ticket order. In a loop that passes no tickets one thread calls `scale` and `update`.

    Differences from torch. With ``exact_torch=True`` only 8 to 12, 14 and 16 remain:
        1. ``min_scale`` is 2^-126 unless given: below 2^-128 torch's reciprocal is inf and a clean step writes
           inf into the parameters; 144 overflows in a row lead there from the default scale.
        2. Below scale 1 gradients are checked after the division too, and at any scale the sums of a sparse
           gradient's duplicates: torch steps with inf there.
        3. A closure is refused by position as well as by keyword.
        4. Constants and scales that no run could want are refused, as are devices; torch accepts NaN, 0, -1 and "gpu".
        5. ``update(8)`` and ``update(torch.tensor([8.0]))`` work; torch takes a Python float or shape ().
        6. What state a fused optimizer makes in a step that is skipped is dropped. torch keeps it, and its fused SGD
           then takes uninitialized memory for its momentum. In both a fused optimizer is called although its kernel
           skips, so that accelerate and transformers, which look for a call, see no skip; `last_step` does.
        7. ``load_state_dict`` in the middle of an iteration refuses the gradients of it that are not divided yet, as 15
           does, if they would be divided by another scale; torch divides them by that. In a loop that passes tickets it
           ends the iteration.
        8. An `update` or `load_state_dict` that raises has changed nothing; torch has added found_inf up in
           place, or taken over half of the dict. A key that is missing is named in a sentence, still as a KeyError.
        9. A fused step that raises leaves no ``grad_scale`` behind; torch then divides twice.
        10. A fused optimizer that was unscaled before it had gradients can be stepped; torch's kernel finds an
           int for a found_inf.
        11. An optimizer whose ``step`` has a parameter ``grad_scaler`` gets unscaled gradients, not the scaler, and a
           RuntimeWarning says so: one that divides them all the same, by a scale that it was told elsewhere, must not.
        12. A gradient on the CPU that lies in memory otherwise than its parameter is copied before a fused step, or
           refused if it is expanded, and so is a parameter with gaps; torch's kernel takes no notice of strides.
        13. A growth interval set or loaded below the clean steps counted so far: the next clean step grows. torch
           waits for the count to equal it, and grows no more until an overflow restarts the count.
        14. Of torch's private names (`ampsim.torch.torch_names`) ``_scale`` and ``_growth_tracker`` are obeyed when
           they are written between iterations, or in an `update` that is not ours, and refused within an iteration, as
           numpy's writing of them always is; a tensor that is put there is taken by value, not shared, and what
           ``_scale.set_`` does is not seen; in ``_per_optimizer_states`` all may be written, with `group` the stages;
           of torch's private methods ``_unscale_grads_``, ``_maybe_opt_step`` and ``_lazy_init_scale_growth_tracker``
           may be overridden, the first two in torch's class itself too, where no other change reaches ours.
        15. Gradients from before an `update`, which no step of that iteration has had and nothing has written since,
           are refused, unless they are zero, where the scale is now another, or `unscale_` has divided them: torch
           divides them by the new one. Not if `capturable`, nor of parameters that no loss before the first `update`
           reached, until a call has had their optimizer.
        16. A first `scale` in inference mode leaves a scale that training can use; torch's raises there.

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
        device: type of the device the scale lives on; the first scaled output decides which.
        init_scale, growth_factor, backoff_factor, growth_interval: the constants of the `Rule`.
        enabled: if False every method passes through.
        depth: k; iteration i uses the scale after max(0, i - k) updates. 0 is torch, 1 is RoundPipe.
        min_scale, max_scale: bounds of the scale.
        on_min_scale: what an overflow at ``min_scale`` does: "clamp" stays there, "warn" says so, "raise" raises
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
        group: a process group of torch.distributed, or "world": what one rank finds in an optimizer's gradients
            all know before any steps it, with DDP, FSDP2 or other shards, so that scales, skips and state dicts are
            equal on all. The largest flag of all, and for a policy the largest amax, by one all-reduce, waited for when
            it is needed. Every rank makes the same calls in the same order, this one included; a step that one rank
            leaves out or makes in another order raises on all. Run with gloo; nccl has not been run yet.
    """

    _sync: Sync = threading  # where locks come from; a test's scheduler takes its place

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
        """Return the next iteration's ticket, for loops that pass tickets; from then on `scale` and `update` need one.

        Waits until its scale is known, that is until at most `depth` tickets are outstanding; TimeoutError
        after `timeout` seconds. If disabled: a ticket that changes nothing.
        """
        if not self._enabled:
            return _NO_TICKET
        register = self._iterations.register or self._start_as_torch(torch.device(self._device))
        self._iterations.by_ticket = True
        return register.begin(timeout)

    # --------------------------------------------------------------------------------------------- scale

    def scale(self, outputs: Any, ticket: ScaleTicket | None = None) -> Any:
        """Multiply a tensor, or tensors in nested iterables, by the ticket's scale. Dtypes as in torch."""
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
        """Return the true loss of a scaled one: `loss` over the scale it was multiplied by. Waits for nothing.

        Right at every point of the loop, after `update` too: without a ticket it takes the one `scale` used
        last. ``loss.item() / scaler.get_scale()`` after ``update()`` is wrong wherever the scale changes. If
        `capturable`, RuntimeError after `update`.
        """
        ticket = ticket or self._scaled
        if not self._enabled or ticket is None:
            return loss.detach()
        if ticket.value.in_place:  # update() writes the scale
            self._iterations.checked("loss_value", ticket)
        return loss.detach() / ticket.value.scale_on(loss.device)

    # ----------------------------------------------------------------------------------- unscale and step

    def unscale_(self, optimizer: Optimizer, ticket: ScaleTicket | None = None) -> None:
        """Divide the gradients by the ticket's scale, in place, and note whether all were finite."""
        if self._enabled:
            ticket = self._iterations.stepping("unscale_", ticket)
            self._holding("unscale_", optimizer, ticket, OptimizerStep.divide_gradients)

    def unscale_and_clip_(
        self, optimizer: Optimizer, max_norm: float | Tensor, ticket: ScaleTicket | None = None
    ) -> Tensor:
        """Do what `unscale_` and ``clip_grad_norm_`` do, in one read of the gradients; return the unscaled total norm.

        With a fused optimizer both multiplications are left to its kernel: ``.grad`` stays scaled until
        `step`. Other optimizers' gradients are unscaled and clipped here, in one write.
        A `max_norm` that is NaN or negative is refused; in a tensor on a device, which is not waited for, it skips
        the step.

        Returns:
            Tensor of shape (), float32: the 2-norm of all unscaled gradients before the clip, what
            ``torch.nn.utils.clip_grad_norm_`` returns.
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
        """Step the optimizer with unscaled gradients, or skip it if any was not finite; unscales if need be.

        Returns what ``optimizer.step(*args, **kwargs)`` returned, None if it was skipped. From another
        thread than the optimizer's, with `launch`: runs there, is waited for, and returns None.
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
        """Do `work` with an optimizer's gradients: on the thread that owns it, while no other call has it."""
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
        """What the newest iteration's steps did: ``.skipped``, ``.skipped_by(optimizer)``."""
        return self._report

    def observe(self, observer: Observer) -> Callable[[], object]:
        """Tell `observer` of every step from now on; return what ends that. Copies and pickles are not observed.

        Raises:
            ValueError: the scaler is `capturable`: a replayed graph runs none of this.
        """
        if self._enabled and self._options.capturable:
            raise ValueError(
                "a capturable scaler: expected one whose steps run in Python; a graph's replay tells nobody"
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
        """Close the iteration: grow or back off by what its steps found, or set the scale to `new_scale`.

        With `launch` the update runs behind the steps on the optimizer's thread; ``is_async=False`` waits for
        it, and the next ticket then carries its result whatever the depth. `new_scale` is taken by value now.
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
        ):  # who comes later finds the ticket closed, and must not begin a record of it anew
            outcome, rule = self._records.outcome(ticket.index, is_async), self._rule
            if by_hand is None and not outcome.flags:
                raise refusals.NOTHING_CHECKED_AT_ALL.error()

            records = self._records.of(ticket.index)
            self._owners.leave(ticket, records)

            def advance(version: AnyVersion) -> AnyVersion:
                version = self._by_hand or version
                if by_hand is not None:
                    return by_hand(version)
                config.check_floor(self._options.on_min_scale, rule, version, outcome.flags)
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
        """Wait until everything sent to the optimizer's thread is done; raise what went wrong there."""
        self._iterations.synchronize()

    # ------------------------------------------------------------------------------------------- reading

    def get_scale(self, up_to_date: bool = False) -> float:
        """Return the scale that this thread's next call uses, or 1.0 if disabled. Waits for the device.

        On the optimizer's thread: the one gradients are divided by. Elsewhere: the one the next loss is
        multiplied by. With `up_to_date`, or in loops that pass tickets: the newest.
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
        """Return the growth factor; `up_to_date` waits for changes still on their way."""
        self._settle(up_to_date)
        return self._growth_factor

    def get_backoff_factor(self, up_to_date: bool = False) -> float:
        """Return the backoff factor; `up_to_date` waits for changes still on their way."""
        self._settle(up_to_date)
        return self._backoff_factor

    def get_growth_interval(self, up_to_date: bool = False) -> int:
        """Return the growth interval; `up_to_date` waits for changes still on their way."""
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
        """Return torch's five keys, and with depth > 0 ``pending``: the scales computed and not yet in force.

        Waits for the optimizer's thread. With depth > 0 no ticket may be outstanding. {} if disabled. Of a policy:
        its name, its numbers and its state.
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
        """Go on where `state_dict` was taken; takes torch's five keys too. Ends the iteration that runs.

        Of more scales than `depth` can delay the newest are taken. KeyError if a key is missing. With a group every
        rank loads the same.
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
            )  # graphs still write it; tickets are counted anew
        else:
            changed["_report"] = StepReport()
        self._iterations.restore(versions, partial(vars(self).update, changed))

    def __getstate__(self) -> dict[str, Any]:
        if self._ranks:
            raise TypeError(
                "a scaler with a group cannot be pickled: expected its state_dict(); save that"
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
        self._reset(launch=None)  # a thread does not travel: the copy works on its caller's
        if hasattr(self, "_rule"):  # what a subclass has changed among torch's names is obeyed
            for name in checkpoint.as_torch_has_it(self._rule, self._first):
                value = vars(self).pop(name, None)
                if value is not None and value != getattr(self, name):
                    setattr(self, name, value)

    def after_fork(self) -> None:
        """Make the locks anew in a child; the optimizer's thread stayed with the parent."""
        self._lock = self._sync.Lock()
        self._records.after_fork()
        self._iterations.after_fork()

    def close(self) -> None:
        """Refuse further work and wake every thread that waits for a ticket. Idempotent."""
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
