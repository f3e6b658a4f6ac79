"""Bugs planted in the register, the scaler and its thread; each is killed by the named test, every time.

A test that has never failed says little. Each mutant below changes one thing; the test beside it, which
passes without it, must fail with it. Deadlocks are found by the conductor, so that no mutant hangs.
"""

import importlib
import sys
from collections import deque
from dataclasses import dataclass

import pytest
import torch

from ampsim.torch import OptimizerThread, checkpoint, config
from ampsim.torch.grad_scaler import GradScaler
from ampsim.torch.state.device import DeviceVersion
from ampsim.torch.state.version import Outcome
from ampsim.torch.step.gradient_owners import GradientOwners
from ampsim.torch.step.optimizer_step import OptimizerStep
from ampsim.torch.step.records import Record, StepRecords
from ampsim.torch.threads import optimizer_thread
from ampsim.torch.threads.iterations import Iterations
from ampsim.torch.threads.launcher import Job
from ampsim.torch.threads.register import Register, _Book


def run(file, name, *arguments):
    """Run the named test, on threads of its own: a bug leaves its failure on one, for whoever asks next."""
    test = getattr(importlib.import_module(f"tests.torch.{file}"), name)
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "roundpipe.optim_stream", raising=False)  # as the test's own fixture does
        patch.setattr(optimizer_thread, "_shared", None)
        threads = []
        if "thread" in test.__code__.co_varnames[: test.__code__.co_argcount]:
            threads.append(OptimizerThread())
        try:
            return test(*threads, *arguments)
        finally:
            for thread in filter(None, [*threads, optimizer_thread._shared]):
                patch.setattr(thread, "_raise_error", lambda: None)
                thread.close(timeout=1)


@dataclass(frozen=True)
class Mutant:
    name: str
    owner: object
    attribute: str
    planted: object
    killer: tuple  # file, test, arguments


MUTANTS = []


def mutant(owner, attribute, *killer, wrap=lambda f: f):
    """The decorated function, called as a method, in the place of the attribute."""

    def register(function):
        MUTANTS.append(Mutant(function.__name__, owner, attribute, wrap(function), killer))
        return function

    return register


SCHEDULES, INVARIANTS = "test_schedules", "test_invariants"


# ---------------------------------------------------------------------------------------------------- register


@mutant(_Book, "next_version", SCHEDULES, "test_every_schedule_of_the_register", 1)
def ring_off_by_one(self, depth):
    return max(0, self.begun - depth + 1, self.floor) if self.begun <= self.applied else self.applied


@mutant(_Book, "next_version", INVARIANTS, "test_05_version_lag_monotone", 1)
def ring_one_too_old(self, depth):
    return max(0, self.begun - depth - 1, self.floor)


@mutant(Register, "apply", SCHEDULES, "test_every_schedule_of_the_drop_in_loop", 0, True)
def publishes_without_notifying(self, ticket, advance, *, is_async=True):
    self._check_turn(ticket)
    made = advance(self.newest)
    with self._lock:
        self._check_turn(ticket)
        self._book = self._book.with_version(made, self.depth, is_async)
    return made


@mutant(Register, "apply", SCHEDULES, "test_every_schedule_of_the_register", 0)
def publishes_before_the_state_is_made(self, ticket, advance, *, is_async=True):
    before = self.newest
    with self._lock:
        self._check_turn(ticket)
        self._changed.notify_all()
        self._book = self._book.with_version(before, self.depth, is_async)
    made = advance(before)
    with self._lock:
        object.__setattr__(self._book, "versions", (*self._book.versions[:-1], made))
    return made


@mutant(Register, "apply", SCHEDULES, "test_every_schedule_of_the_register", 1)
def reads_the_book_outside_the_lock_that_it_stores_under(self, ticket, advance, *, is_async=True):
    self._check_turn(ticket)
    book = self._book.with_version(advance(self.newest), self.depth, is_async)
    with self._lock:
        self._changed.notify_all()
        self._book = book
    return book.versions[-1]


@mutant(Register, "_check_turn", INVARIANTS, "test_07_updates_once_and_in_order")
def applies_out_of_order(self, ticket):
    self.check_open()
    if not any(ticket is known for known in self.outstanding()):
        raise RuntimeError(f"ticket {ticket.index} was updated already")


@mutant(Register, "apply", "test_tickets", "test_of_two_threads_with_one_ticket_the_slower_is_refused")
def looks_whether_it_is_its_turn_only_once(self, ticket, advance, *, is_async=True):
    self._check_turn(ticket)
    made = advance(self.newest)
    with self._lock:
        self._changed.notify_all()
        self._book = self._book.with_version(made, self.depth, is_async)
    return made


@mutant(_Book, "with_version", SCHEDULES, "test_every_schedule_of_the_register_with_synchronous_updates")
def forgets_the_floor(self, made, depth, is_async, honest=_Book.with_version):
    return honest(self, made, depth, True)


@mutant(Register, "close", SCHEDULES, "test_every_schedule_of_a_close_wakes_everybody")
def closes_without_notifying(self, cause=None):
    with self._lock:
        self._closed = self._closed or cause or True


@mutant(Register, "current", SCHEDULES, "test_every_schedule_of_two_threads_that_scale_first", 1)
def begins_the_implicit_ticket_twice(self, first=0):
    return self.known(first) or self.begin()


@mutant(Register, "restore", INVARIANTS, "test_22_resume_is_bitwise", 1, False)
def restores_only_the_newest(self, versions, honest=Register.restore):
    honest(self, versions[-1:])


@mutant(Register, "_has_next", INVARIANTS, "test_06_at_most_depth_plus_1_tickets_outstanding", 1)
def begins_one_ticket_too_many(self):
    return self._book.next_version(self.depth) <= self._book.applied + 1


# -------------------------------------------------------------------------------------------------- iterations


@mutant(Iterations, "start", SCHEDULES, "test_every_schedule_of_two_threads_that_scale_first", 1)
def makes_the_register_twice(self, first):
    if self.register is None:
        self.register = Register(first()[0], self._depth, sync=self._sync)
    return self.register


@mutant(Iterations, "ask", SCHEDULES, "test_an_interrupted_call_has_done_all_or_nothing_and_can_be_made_again", 0)
def loses_the_ticket_at_an_interrupt(self, ticket, finish, is_async):
    with self._asking:
        self._requested = ticket.index + 1
    return self.launcher.send(finish, on_error=self.register.close)


@mutant(Iterations, "ask", SCHEDULES, "test_every_schedule_of_a_step_function_that_raises_tells_the_client", 0)
def tells_nobody_that_an_update_failed(self, ticket, finish, is_async):
    self._requested = ticket.index + 1
    return self.launcher.send(finish)


@mutant(Iterations, "ask", INVARIANTS, "test_17_exceptions_of_an_awaited_update_go_to_its_caller_alone")
def closes_after_an_awaited_failure_too(self, ticket, finish, is_async, honest=Iterations.ask):
    return honest(self, ticket, finish, True)


@mutant(Iterations, "stepping", SCHEDULES, "test_every_schedule_of_the_drop_in_loop", 0, True)
def waits_for_a_version_holding_the_records_lock(self, name, ticket, honest=Iterations.stepping):
    if self.launcher.here():
        return honest(self, name, ticket)
    with self.launcher.records.lock:
        return honest(self, name, ticket)


@mutant(Iterations, "seen_here", "test_pipelined", "test_get_scale_is_what_the_next_loss_is_multiplied_by", 2)
def tells_every_thread_the_newest_scale(self, register):
    return register.newest


@mutant(Iterations, "_waiting", SCHEDULES, "test_every_schedule_of_the_drop_in_loop", 0, True, wrap=property)
def scales_with_a_ticket_whose_update_was_asked_for(self):
    return 0


# ------------------------------------------------------------------------------------------- scaler and versions


@mutant(GradScaler, "_with_step", INVARIANTS, "test_01_exact_unscale", 1)
def reads_the_version_at_the_update_instead_of_at_begin(self, ticket, work, record, honest=GradScaler._with_step):
    def late(step):
        step.version = self._iterations.register.newest
        return work(step)

    return honest(self, ticket, late, record)


@mutant(GradScaler, "loss_value", "test_seeds",
        "test_the_documented_loss_is_wrong_where_the_scale_changes_and_loss_value_is_right")  # fmt: skip
def divides_the_loss_by_the_next_scale(self, loss, ticket=None):
    return loss.detach() / self.get_scale()


@mutant(DeviceVersion, "next", INVARIANTS, "test_08_a_published_scale_is_never_written", 1, True)
def writes_a_published_scale(self, rule, outcome, honest=DeviceVersion.next):
    made = honest(self, rule, outcome)
    self.scale.copy_(made.scale)
    return DeviceVersion(self.scale, made.growth_tracker)


@mutant(config, "new_scale_by_value", INVARIANTS, "test_13_new_scale_captured_by_value", False)
def takes_new_scale_by_reference(new_scale, device, rule, options):
    return new_scale


@mutant(GradScaler, "_set_constant", INVARIANTS, "test_14_setters_fifo_with_updates")
def sets_constants_at_once(self, name, value):
    self._rule = config.changed(self._rule, self._options, **{name: value})


@mutant(StepRecords, "outcome", INVARIANTS, "test_10_found_inf_stays_with_its_ticket")
def gives_every_ticket_all_found_infs(self, ticket, is_async):
    return Outcome([f for records in self._records.values() for r in records.values() for f in r.found_inf.values()])


@mutant(StepRecords, "close", INVARIANTS, "test_10_found_inf_stays_with_its_ticket")
def drops_the_records_of_other_tickets(self, ticket):
    self._records.clear()


@mutant(StepRecords, "holding", SCHEDULES, "test_every_schedule_of_two_threads_that_step_one_optimizer")
def checks_the_stage_without_a_lock(self, ticket, optimizer, check, work):
    return work(self._records.setdefault(ticket, {}).setdefault(id(optimizer), Record(optimizer=optimizer)))


@mutant(GradientOwners, "check_owner", INVARIANTS, "test_15_gradients_of_two_tickets_in_one_grad_raise",
        {"kind": torch.optim.AdamW, "fused": True})  # fmt: skip
def does_not_look_whose_gradients_they_are(self, optimizer, ticket):
    return None


@mutant(GradientOwners, "written", INVARIANTS, "test_15_gradients_of_two_tickets_in_one_grad_raise", {})
def does_not_look_who_wrote_before(self, grad):
    if grad is not None:
        grad._ampsim_ticket = (next(iter(self._running.values())), grad._version)


@mutant(OptimizerStep, "_divide", "test_drop_in", "test_difference_2_gradients_below_scale_1_are_checked_once_divided")
def checks_scaled_gradients_only(self, honest=OptimizerStep._divide):
    self.means = self.means._replace(exact_torch=True)
    honest(self)


@mutant(checkpoint, "to_dict", INVARIANTS, "test_22_resume_is_bitwise", 1, False)
def saves_the_newest_scale_only(rule, states, depth, honest=checkpoint.to_dict):
    return honest(rule, states[-1:], depth)


@mutant(Record, "check_steppable", INVARIANTS, "test_03_depth_0_equals_torch")
def steps_twice(self):
    return None


# ------------------------------------------------------------------------------------------------------- thread


@mutant(OptimizerThread, "_fail", SCHEDULES, "test_every_schedule_of_a_step_function_that_raises_tells_the_client", 0)
def drops_what_is_behind_a_failure_in_silence(self, job, error):
    with self._lock:
        self._failed, self._queue = (job, error), deque()
    job.fail(error)


@mutant(OptimizerThread, "launch", SCHEDULES, "test_every_schedule_of_the_drop_in_loop", 1, False)
def launches_without_waking_the_thread(self, work, *args, **kwargs):
    job = Job(sync=self._sync)
    with self._lock:
        self._queue.append((job, lambda: work(*args, **kwargs), None))
    return job


@mutant(OptimizerThread, "launch", SCHEDULES, "test_every_schedule_of_the_drop_in_loop", 1, False)
def runs_the_last_launched_first(self, work, *args, honest=OptimizerThread.launch, **kwargs):
    job = honest(self, work, *args, **kwargs)
    self._queue.rotate(1)
    return job


@mutant(Job, "fail", SCHEDULES, "test_an_interrupt_at_any_point_leaves_nobody_waiting", 0, "optimizer")
def tells_an_outcome_once_even_if_an_interrupt_struck(self, error):
    if not self.done():
        self.set_exception(error)


@mutant(OptimizerThread, "_work", SCHEDULES, "test_an_interrupt_at_any_point_leaves_nobody_waiting", 1, "optimizer")
def dies_without_a_word(self):
    while self._run_next():
        pass


def plant(each, monkeypatch):
    monkeypatch.setattr(each.owner, each.attribute, each.planted)
    if each.name == "waits_for_a_version_holding_the_records_lock":  # which is what one lock for all comes to
        reset = GradScaler._reset

        def shares(self, launch):
            reset(self, launch)
            self._launcher.records = self._records

        monkeypatch.setattr(GradScaler, "_reset", shares)


def fails(killer):
    """The error that the named test ends in, or None."""
    try:
        run(*killer)
    except (Exception, pytest.fail.Exception) as error:
        return error
    return None


@pytest.mark.parametrize("each", MUTANTS, ids=lambda each: each.name)
def test_a_planted_bug_is_found_by_the_named_test(each, monkeypatch):
    plant(each, monkeypatch)
    error = fails(each.killer)
    assert error is not None, f"{each.killer[1]} does not see it"
    print(f"{each.killer[1]}{each.killer[2:]}: {type(error).__name__}: {str(error).splitlines()[:1]}")


def test_the_mutants_are_many_and_each_is_another():
    assert len({each.name for each in MUTANTS}) == len(MUTANTS) >= 15
