"""The thread-safe, asynchronous loss scaler: torch.amp.GradScaler's interface over tickets."""

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.core.machine import State, init
from ampsim.torch import config, stepping
from ampsim.torch.ledger import Record, Stage, StepReport
from ampsim.torch.ownership import Ownership
from ampsim.torch.tickets import Register, Ticket
from ampsim.torch.versions import Version, first_version
from ampsim.torch.worker import Worker

_FIX = "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration."


class GradScaler:
    """Scales losses and unscales gradients, at any depth, from any thread. Drop-in for torch.amp.GradScaler.

    Guarantees:
        * Every gradient is divided by the scale its loss was multiplied by, whatever the schedule.
        * No optimizer steps with a gradient that is inf or NaN once unscaled, at any scale.
        * A skipped step changes no bit of parameters or optimizer state.
        * A tensor that was used as a scale is never written again.
        * A call that raises changes neither scale nor stages (gradients it was unscaling excepted).
        * With depth 0 the scales, the stages, the errors and their texts are torch's; see Differences.

    Assumes:
        * One optimizer is stepped by one thread at a time, and its gradients are complete by then.
        * Updates come in ticket order. In a loop that passes no tickets one thread calls `scale` and `update`.

    Differences from torch. With ``policy="torch"`` only the last two remain:
        1. ``min_scale`` is 2^-126 unless given: below 2^-128 torch's reciprocal is inf and a clean step writes
           inf into the parameters; 144 overflows in a row lead there from the default scale.
        2. Below scale 1 gradients are checked after the division too: torch steps with inf there.
        3. A closure is refused by position as well as by keyword.
        4. Constants and scales that no run could want are refused; torch accepts NaN, 0 and -1.
        5. ``update(8)`` works; torch takes a Python float only.
        6. ``load_state_dict`` in the middle of an iteration ends it; torch swaps the scale under it.

    ============== ====================================== =======================
    attribute      written by                             read by
    ============== ====================================== =======================
    ``_register``  the first `scale` or `begin`, locked   any thread, lock-free
    ``_ticket``    the thread that scales, locked         any thread, lock-free
    ``_scaled``    the thread that scales                 the thread that scales
    ``_rule``      the thread that runs updates           any thread, lock-free
    ``_ledger``    stages locked; a record by one thread  any thread
    ``_report``    the thread that steps, whole           any thread, lock-free
    ============== ====================================== =======================

    Args:
        device: type of the device the scale lives on; the first scaled output decides which.
        init_scale, growth_factor, backoff_factor, growth_interval: the constants of the `Rule`.
        enabled: if False every method passes through.
        depth: k; iteration i uses the scale after max(0, i - k) updates. 0 is torch, 1 is RoundPipe.
        min_scale, max_scale: bounds of the scale.
        policy: what an overflow at ``min_scale`` does: "clamp" stays there, "warn" says so, "raise" raises
            FloatingPointError (those two wait for the device at each update). "torch": exactly as torch.
        launch: runs a function later, in order, on the thread that owns the optimizer, such as
            ``OptimizerThread().launch``. None runs everything on the caller's thread.
        allow_fp16: unscale float16 gradients instead of refusing them.
    """

    _sync: ClassVar[Any] = threading  # where locks come from; a test's scheduler takes its place

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
        policy: config.Policy | None = None,
        launch: Callable[..., Any] | None = None,
        allow_fp16: bool = False,
    ) -> None:
        self._device, self._enabled = str(device), config.usable(str(device), enabled)
        self._policy, self._depth = config.check_policy(policy), config.check_depth(depth)
        self._allow_fp16, self._launch = allow_fp16, launch
        if self._enabled:
            numbers = (init_scale, growth_factor, backoff_factor, growth_interval)
            self._rule = config.make_rule(*numbers, min_scale, max_scale, strict=self._strict)
            self._first: tuple[State, ...] = (init(self._rule),)
        self._reset()

    @property
    def _strict(self) -> bool:
        return self._policy == "torch"

    def _reset(self) -> None:
        self._lock = self._sync.Lock()
        self._register: Register[Version] | None = None
        self._ticket: Ticket[Version] | None = None  # of the loop that passes none
        self._scaled: Ticket[Version] | None = None  # the one that scale() used last
        self._passes_tickets = False
        self._ledger: dict[int, dict[Optimizer, Record]] = {}  # ticket index -> what was done
        self._report, self._reported = StepReport(), -1  # and the ticket it is about
        self._ownership = Ownership() if self._depth else None
        self._worker = Worker(self._launch, sync=self._sync)
        _alive.add(self)

    # ------------------------------------------------------------------------------------------- tickets

    def begin(self, timeout: float | None = None) -> Ticket[Version]:
        """The next iteration's ticket, for loops that pass tickets.

        Waits until its scale is known, that is until at most `depth` tickets are outstanding; TimeoutError
        after `timeout` seconds. To be called by one thread.
        """
        if not self._enabled:
            raise RuntimeError("begin() on a disabled GradScaler: it has no tickets; pass enabled=True")
        self._passes_tickets = True
        register = self._register or self._start(torch.device(self._device))
        return register.begin(timeout)

    def _start(self, device: torch.device) -> Register[Version]:
        """Make the register: on the device of the first output, as torch does; a "cpu" scaler's on the CPU."""
        with self._lock:
            if self._register is None:
                device = torch.device("cpu") if self._device == "cpu" else device
                versions = tuple(first_version(state, device) for state in self._first)
                register = Register(versions[0], self._depth, sync=self._sync)
                register.restore(versions)
                self._register = register
            return self._register

    def _implicit(self, register: Register[Version]) -> Ticket[Version]:
        """The ticket of the iteration that is being computed; begun here by the first who asks."""
        ticket = self._ticket
        if ticket is None:
            with self._lock:
                if self._ticket is None:
                    self._ticket = register.begin()
                ticket = self._ticket
        return ticket

    def _stepping(self, name: str, ticket: Ticket[Version] | None) -> Ticket[Version]:
        """The ticket whose gradients the optimizer has: the oldest that was not updated."""
        register = self._started(name)
        outstanding = register.outstanding()
        if ticket is None:
            return outstanding[0] if outstanding else self._implicit(register)
        if not any(ticket is known for known in outstanding):
            raise RuntimeError(
                f"{name} with ticket {ticket.index}: expected one that begin() returned and update() has not had"
            )
        return ticket

    def _started(self, name: str) -> Register[Version]:
        if self._register is None:
            raise AssertionError(f"Attempted {name} but _scale is None.  " + _FIX)
        return self._register

    # --------------------------------------------------------------------------------------------- scale

    def scale(self, outputs: Any, ticket: Ticket[Version] | None = None) -> Any:
        """Multiply a tensor, or tensors in nested iterables, by the ticket's scale. Dtypes as in torch."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return self._scale_one(outputs, ticket)
        if isinstance(outputs, Iterable):
            scaled = (self.scale(output, ticket) for output in outputs)
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    def _scale_one(self, output: Tensor, ticket: Ticket[Version] | None) -> Tensor:
        if ticket is None:
            ticket = self._implicit(self._register or self._start(output.device))
        self._scaled = ticket
        scaled = output * ticket.value.scale_on(output.device)
        if self._ownership is not None and scaled.requires_grad:
            self._ownership.watch(scaled, ticket, self._is_outstanding)
        return scaled

    def _is_outstanding(self, ticket: Ticket[Version]) -> bool:
        return self._register is not None and any(ticket is t for t in self._register.outstanding())

    def loss_value(self, loss: Tensor, ticket: Ticket[Version] | None = None) -> Tensor:
        """The true loss of a scaled one: `loss` over the scale it was multiplied by. Waits for nothing.

        Right at every point of the loop, after `update` too: without a ticket it takes the one `scale` used
        last. ``loss.item() / scaler.get_scale()`` after ``update()`` is wrong wherever the scale changes.
        """
        ticket = ticket or self._scaled
        if not self._enabled or ticket is None:
            return loss.detach()
        return loss.detach() / ticket.value.scale_on(loss.device)

    # ----------------------------------------------------------------------------------- unscale and step

    def unscale_(self, optimizer: Optimizer, ticket: Ticket[Version] | None = None) -> None:
        """Divide the gradients by the ticket's scale, in place, and note whether all were finite."""
        if not self._enabled:
            return
        if not self._worker.here():
            self._worker.call(self.unscale_, optimizer, ticket)
            return
        ticket = self._stepping("unscale_", ticket)
        record = self._claim(ticket, optimizer)
        options = {"safe": not self._strict, "allow_fp16": self._allow_fp16}
        self._undoing(record, stepping.unscale_, optimizer, ticket.value, record, **options)

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
        if not self._worker.here():
            return self._worker.call(self.unscale_and_clip_, optimizer, max_norm, ticket)  # type: ignore[no-any-return]
        ticket = self._stepping("unscale_", ticket)
        record = self._claim(ticket, optimizer)
        work, options = stepping.unscale_and_clip_, {"allow_fp16": self._allow_fp16}
        return self._undoing(record, work, optimizer, max_norm, ticket.value, record, **options)  # type: ignore[no-any-return]

    def _claim(self, ticket: Ticket[Version], optimizer: Optimizer) -> Record:
        """Move the optimizer on to UNSCALED, or say why not; only one thread gets through."""
        if self._ownership is not None:
            self._ownership.check(optimizer, ticket)
        with self._lock:
            record = self._ledger.setdefault(ticket.index, {}).setdefault(optimizer, Record())
            if record.stage is Stage.UNSCALED:
                raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
            if record.stage is Stage.STEPPED:
                raise RuntimeError("unscale_() is being called after step().")
            record.stage = Stage.UNSCALED
        return record

    @staticmethod
    def _undoing(record: Record, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return work(*args, **kwargs)
        except BaseException:
            record.found_inf.clear()
            record.stage = Stage.READY
            raise

    def step(self, optimizer: Optimizer, *args: Any, ticket: Ticket[Version] | None = None, **kwargs: Any) -> Any:
        """Step the optimizer with unscaled gradients, or skip it if any was not finite; unscales if need be.

        Returns what ``optimizer.step(*args, **kwargs)`` returned, None if it was skipped. From another
        thread than the optimizer's, with `launch`: runs there, is waited for, and returns None.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or (not self._strict and args and callable(args[0])):
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        if not self._worker.here():
            self._worker.call(self.step, optimizer, *args, ticket=ticket, **kwargs)
            return None
        ticket = self._stepping("step", ticket)
        record = self._ledger.setdefault(ticket.index, {}).setdefault(optimizer, Record())
        if record.stage is Stage.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if stepping.is_fused(optimizer):
            safe = not self._strict
            result = stepping.step_fused(optimizer, ticket.value, record, args, kwargs, safe=safe)
        else:
            if record.stage is Stage.READY:
                self.unscale_(optimizer, ticket)
            result = stepping.step_plain(optimizer, record, args, kwargs)
        record.stage = Stage.STEPPED
        self._stepped(ticket, optimizer, record)
        return result

    def _stepped(self, ticket: Ticket[Version], optimizer: Optimizer, record: Record) -> None:
        if self._ownership is not None:
            self._ownership.release(optimizer)
        report = self._report if self._reported == ticket.index else StepReport()
        self._report, self._reported = report.adding(optimizer, record), ticket.index

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
        register = self._started("update")
        if new_scale is not None:
            new_scale = config.new_scale_by_value(new_scale, self._device, self._rule, strict=self._strict)
        if not self._worker.remote:
            self._finish(register, self._stepping("update", ticket), new_scale, is_async)
            return
        if ticket is None:
            if self._worker.here():
                raise RuntimeError(
                    "update() without a ticket on the optimizer's thread: pass ticket=, or call it "
                    "on the thread that calls scale()"
                )
            ticket = self._implicit(register)
        self._ticket = None
        done = self._worker.send(self._finish_remote, register, ticket, new_scale, is_async)
        if not is_async:
            done.result()

    def _finish_remote(self, register: Register[Version], *args: Any) -> None:
        """An update nobody may be waiting for: if it fails, whoever waits for its version must hear of it."""
        try:
            self._finish(register, *args)
        except BaseException as error:
            register.close(error)
            raise

    def _finish(
        self,
        register: Register[Version],
        ticket: Ticket[Version],
        new_scale: float | Tensor | None,
        is_async: bool,
    ) -> None:
        records = self._ledger.get(ticket.index, {})
        flags = [flag for record in records.values() for flag in record.found_inf.values()]
        if new_scale is None and not flags:
            raise AssertionError("No inf checks were recorded prior to update.")
        rule = self._rule

        def advance(version: Version) -> Version:
            if new_scale is not None:
                return version.override(rule, new_scale)
            config.check_floor(self._policy, rule, version, flags)
            return version.next(rule, flags)

        register.apply(ticket, advance, is_async=is_async)
        self._ledger.pop(ticket.index, None)
        if self._ticket is ticket:
            self._ticket = None

    def synchronize(self) -> None:
        """Wait until everything sent to the optimizer's thread is done; raise what went wrong there."""
        if not self._worker.here():
            self._worker.call(lambda: None)
        if self._enabled and self._register is not None:
            self._register.check_open()

    # ------------------------------------------------------------------------------- getters and setters

    def get_scale(self, up_to_date: bool = False) -> float:
        """The scale that this thread's next call uses, or 1.0 if disabled. Waits for the device.

        On the optimizer's thread: the one gradients are divided by. Elsewhere: the one the next loss is
        multiplied by. With `up_to_date`, or in loops that pass tickets: the newest.
        """
        if not self._enabled:
            return 1.0
        if up_to_date:
            self.synchronize()
        return self._current().scale

    def _current(self, up_to_date: bool = False) -> State:
        register = self._register
        if register is None:
            return self._first[0]
        outstanding = register.outstanding()
        if up_to_date or self._passes_tickets:
            return register.newest.read()
        if self._worker.remote and self._worker.here() and outstanding:
            return outstanding[0].value.read()
        ticket = self._ticket
        return (ticket.value if ticket is not None else register.peek()).read()

    def _constant(self, name: str, up_to_date: bool) -> Any:
        if up_to_date and self._enabled:
            self.synchronize()
        return getattr(self._rule, name)

    def _set_constant(self, name: str, value: Any) -> None:
        """In order with updates: on the optimizer's thread where there is one."""
        new = config.changed(self._rule, strict=self._strict, **{name: value})  # refuses here and now

        def change() -> None:
            self._rule = config.changed(self._rule, strict=self._strict, **{name: getattr(new, name)})

        if self._worker.here():
            change()
        else:
            self._worker.send(change)

    def get_growth_factor(self, up_to_date: bool = False) -> float:
        """The growth factor; `up_to_date` waits for changes still on their way."""
        return self._constant("growth_factor", up_to_date)  # type: ignore[no-any-return]

    def get_backoff_factor(self, up_to_date: bool = False) -> float:
        """The backoff factor; `up_to_date` waits for changes still on their way."""
        return self._constant("backoff_factor", up_to_date)  # type: ignore[no-any-return]

    def get_growth_interval(self, up_to_date: bool = False) -> int:
        """The growth interval; `up_to_date` waits for changes still on their way."""
        return self._constant("growth_interval", up_to_date)  # type: ignore[no-any-return]

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the growth factor, in order with updates."""
        self._set_constant("growth_factor", new_factor)

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the backoff factor, in order with updates."""
        self._set_constant("backoff_factor", new_factor)

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the growth interval, in order with updates."""
        self._set_constant("growth_interval", new_interval)

    def _get_growth_tracker(self) -> int:
        if not self._enabled:
            return 0
        newest = self._first[-1] if self._register is None else self._register.newest.read()
        return newest.growth_tracker

    def is_enabled(self) -> bool:
        """Whether this scaler does anything."""
        return self._enabled

    # ------------------------------------------------------------------------------------- saving, ending

    def _states(self) -> tuple[State, ...]:
        """The state the next ticket carries, and every newer one."""
        self.synchronize()
        if self._register is None:
            return self._first
        if self._depth == 0:
            return (self._register.newest.read(),)
        return tuple(version.read() for version in self._register.pending())

    def state_dict(self) -> dict[str, Any]:
        """Torch's five keys, and with depth > 0 ``pending``: the scales computed and not yet in force.

        Waits for the optimizer's thread. With depth > 0 no ticket may be outstanding. {} if disabled.
        """
        if not self._enabled:
            return {}
        states = self._states()
        saved: dict[str, Any] = {
            "scale": states[0].scale,
            "growth_factor": self._rule.growth_factor,
            "backoff_factor": self._rule.backoff_factor,
            "growth_interval": self._rule.growth_interval,
            "_growth_tracker": states[-1].growth_tracker,
        }
        if self._depth:
            saved["pending"] = [state.scale for state in states[1:]]
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; takes torch's five keys too. Ends the iteration that runs."""
        if not self._enabled:
            return
        if len(state_dict) == 0:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
            )
        self.synchronize()
        names = ("growth_factor", "backoff_factor", "growth_interval")
        rule = config.changed(self._rule, strict=self._strict, **{name: state_dict[name] for name in names})
        scales = [state_dict["scale"], *state_dict.get("pending", ())]
        tracker = int(state_dict["_growth_tracker"])
        states = tuple(State(config.held(scale, rule, strict=self._strict), tracker) for scale in scales)
        with self._lock:  # everything was read and checked: from here on nothing can fail
            self._rule, self._first = rule, states
            if self._register is not None:
                device = self._register.newest.device
                self._register.restore(tuple(first_version(state, device) for state in states))
            self._ledger, self._ticket, self._scaled = {}, None, None

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name in _PICKLED}
        if self._enabled:
            if any(self._ledger.values()):
                raise AssertionError(
                    "A GradScaler instance may only be pickled at the beginning "
                    "of an iteration, or at the end after scaler.update()."
                )
            kept["_first"] = self._states()
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._launch = None  # a thread does not travel: the copy works on its caller's
        self._reset()

    def close(self) -> None:
        """Refuse further work and wake every thread that waits for a ticket. Idempotent."""
        if self._enabled and self._register is not None:
            self._register.close()

    def _after_fork(self) -> None:
        """In a child: locks may be held by threads that are not there, and so may be the optimizer's thread."""
        if not self._enabled:
            return
        self._lock = self._sync.Lock()
        if self._register is not None:
            gone = RuntimeError("this process is a fork: the optimizer's thread stayed with the parent")
            self._register.after_fork(gone if self._worker.remote else None)


_PICKLED = {"_device", "_enabled", "_policy", "_depth", "_allow_fp16", "_rule", "_first"}
_alive: "weakref.WeakSet[GradScaler]" = weakref.WeakSet()


def _fork_all() -> None:
    for scaler in list(_alive):
        scaler._after_fork()  # noqa: SLF001


os.register_at_fork(after_in_child=_fork_all)
