"""`AsyncGradScaler` and its optimizer thread under the deterministic scheduler.

Each access to what threads share is a switch point: the state, the ends of calls, the outcomes of
jobs. Interrupts, forks, closes, and failures are events at any of these points, with a
second thread active.
"""

import os
import signal
import threading
from contextlib import suppress
from functools import partial
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampsim.core import pipeline
from ampsim.core.machine import Rule
from ampsim.testing import scheduler
from ampsim.testing.scheduler.task_runner import TaskRunner
from ampsim.torch import async_scaler, optimizer_thread, shared_state
from ampsim.torch.async_scaler import AsyncGradScaler
from ampsim.torch.async_state import Call, ClosedError, ForkedError
from ampsim.torch.optimizer_thread import Job, OptimizerThread
from ampsim.torch.shared_state import SharedState
from tests.testing.programs import schedules
from tests.torch.helpers import INF

RULE = Rule(init_scale=8.0, growth_interval=1)
WEIGHTS = torch.tensor([1.0, 2.0])
PLAN = [True, False, False]


def instrument(c, *, watches=True):
    """Give the scaler's modules the scheduler's locks; make shared attributes switch points."""
    for module in (async_scaler, optimizer_thread):
        c.patch(module)
    if watches:
        c.watch(SharedState, "value")
        c.watch(Call, "is_over", "is_writing")
        c.watch(Job, "outcome")
        c.watch(AsyncGradScaler, "_thread", "_last_scaled")


def make(depth=0, **options):
    return AsyncGradScaler("cpu", 8.0, growth_interval=1, depth=depth, **options)


def a_parameter():
    param = torch.nn.Parameter(torch.zeros(2))
    return param, torch.optim.SGD([param], lr=1.0)


def a_step(scaler, param, overflows, ticket=None):
    if overflows:
        param.grad[1] = INF
    scaler.step(torch.optim.SGD([param], lr=1.0), ticket=ticket)


class Outcome:
    """A plan of iterations, and what the pure pipeline says that it leads to."""

    def __init__(self, depth, plan, is_async=None):
        self.depth, self.plan = depth, plan
        self.is_async = is_async or [True] * len(plan)
        model = pipeline.start(RULE, depth)
        for index, overflows in enumerate(plan):
            model = pipeline.begin_iteration(model)
            model = pipeline.finish(
                model, index, overflows, synchronous=not self.is_async[index]
            )
        self.scales = [model.scale(index) for index in range(len(plan))]
        self.params = [[0.0, 0.0] if overflows else [-1.0, -2.0] for overflows in plan]
        self.newest = model.versions[-1].scale

    def check(self, run):
        assert run.value == (self.scales, self.params, self.newest)


def drop_in_program(outcome, watches=True):
    """RoundPipe's loop: the client scales and runs backward, the optimizer's thread steps and
    updates.
    """

    def program(c):
        instrument(c, watches=watches)
        thread = OptimizerThread(device="cpu")
        scaler = make(outcome.depth, executor=thread)
        scales, params = [], []
        try:
            for i, overflows in enumerate(outcome.plan):
                param, _ = a_parameter()
                loss = scaler.scale((param * WEIGHTS).sum() + 1.0)
                scales.append(loss.item())
                loss.backward()
                thread.launch(a_step, scaler, param, overflows)
                scaler.update(is_async=outcome.is_async[i])
                params.append(param)
            scaler.synchronize()
            newest = scaler.get_scale(up_to_date=True)
        finally:
            scaler.close()
            thread.close(None)
        return scales, [param.tolist() for param in params], newest

    return program


def ticket_program(outcome, watches=True):
    """Threads of the loop's own that pass tickets: one begins and scales, one steps and updates."""

    def program(c):
        instrument(c, watches=watches)
        scaler = make(outcome.depth)
        handed_over = c.sync.Queue()
        scales, params = [], []

        def optimizer():
            while (item := handed_over.get()) is not None:
                ticket, param = item
                a_step(scaler, param, outcome.plan[ticket.index], ticket)
                scaler.update(ticket=ticket)

        worker = c.spawn("optimizer", optimizer)
        for _ in outcome.plan:
            ticket = scaler.begin_iteration()
            param, _ = a_parameter()
            loss = scaler.scale((param * WEIGHTS).sum() + 1.0, ticket=ticket)
            scales.append(loss.item())
            loss.backward()
            params.append(param)
            handed_over.put((ticket, param))
        handed_over.put(None)
        worker.join()
        return (
            scales,
            [param.tolist() for param in params],
            scaler.get_scale(up_to_date=True),
        )

    return program


PROGRAMS = {"drop in": drop_in_program, "tickets": ticket_program}


def explore(program, check=None, preemptions=1):
    assert scheduler.explore(program, preemptions=preemptions, check=check).exhausted


def expect(value):
    def check(run):
        assert run.value == value

    return check


# ------------------------------------------------------------------------- schedule independence


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("name", [*PROGRAMS])
def test_all_schedules_of_loops(name, depth):
    outcome = Outcome(depth, PLAN[:2])
    explore(PROGRAMS[name](outcome), outcome.check)


@pytest.mark.parametrize("depth", [0, 1])
def test_schedules_of_longer_loop(depth):
    outcome = Outcome(depth, PLAN)  # only locks are switch points
    explore(drop_in_program(outcome, watches=False), outcome.check)


def test_schedules_with_synchronous_updates():
    outcome = Outcome(1, PLAN[:2], is_async=[False, True])
    explore(drop_in_program(outcome), outcome.check)


@pytest.mark.deep
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("name", [*PROGRAMS])
def test_schedules_with_two_preemptions(name, depth):
    outcome = Outcome(depth, PLAN)
    explore(PROGRAMS[name](outcome, watches=False), outcome.check, preemptions=2)


@given(
    name=st.sampled_from([*PROGRAMS]),
    depth=st.integers(0, 3),
    plan=st.lists(st.booleans(), min_size=1, max_size=4),
    schedule=schedules(400),
)
def test_generated_schedules_of_loops(name, depth, plan, schedule):
    outcome = Outcome(depth, plan)
    outcome.check(scheduler.run(PROGRAMS[name](outcome), schedule))


# --------------------------------------------------------------------------- calls at one time


def race(c, *calls):
    """Run calls on threads of their own; return the errors of those that raised."""
    errors = []

    def run(call):
        try:
            call()
        except RuntimeError as error:
            errors.append(error)

    for thread in [
        c.spawn(f"call {number}", run, call) for number, call in enumerate(calls)
    ]:
        thread.join()
    return errors


def test_schedules_of_two_first_scales():
    # One iteration is begun.
    def program(c):
        instrument(c)
        scaler, seen = make(1), []
        race(c, *[lambda: seen.append(scaler.scale(torch.tensor(1.0)).item())] * 2)
        scaler.update(2.0)
        return seen, scaler.state_dict()["pending"]

    explore(program, expect(([8.0, 8.0], [2.0])))


def test_schedules_of_step_and_unscale():
    # The gradients are divided once and the step is taken once; at most one call raises.
    def program(c):
        instrument(c)
        scaler, (param, optimizer) = make(), a_parameter()
        scaler.scale((param * WEIGHTS).sum()).backward()
        errors = race(
            c, partial(scaler.step, optimizer), partial(scaler.unscale_, optimizer)
        )
        if not param.any():
            scaler.step(optimizer)
        return param.tolist(), param.grad.tolist(), len(errors) <= 1

    explore(program, expect(([-1.0, -2.0], [1.0, 2.0], True)))


@pytest.mark.parametrize("late", ["unscale_", "step", "unscale_and_clip_"])
def test_schedules_of_call_during_update(late):
    def program(c):
        instrument(c)
        scaler, (param, optimizer) = make(1), a_parameter()
        ticket = scaler.begin_iteration()
        scaler.scale((param * WEIGHTS).sum(), ticket=ticket).backward()
        scaler.step(optimizer, ticket=ticket)
        arguments = (1e9,) if late == "unscale_and_clip_" else ()
        comes_late = partial(
            getattr(scaler, late), optimizer, *arguments, ticket=ticket
        )
        errors = race(c, partial(scaler.update, ticket=ticket), comes_late)
        if any("a call works on its gradients" in str(error) for error in errors):
            scaler.update(ticket=ticket)
        scaler.state_dict()
        return param.grad.tolist(), param.tolist(), scaler.get_scale()

    explore(program, expect(([1.0, 2.0], [-1.0, -2.0], 16.0)))


def test_schedules_of_second_optimizer_during_update():
    # Its overflow is in the update, or its step raises because the iteration is over.
    def program(c):
        instrument(c)
        scaler, (one, first), (two, second) = make(1), a_parameter(), a_parameter()
        ticket = scaler.begin_iteration()
        scaler.scale((one * WEIGHTS).sum() + two.sum() * INF, ticket=ticket).backward()
        scaler.step(first, ticket=ticket)
        step = partial(scaler.step, second, ticket=ticket)
        errors = race(c, partial(scaler.update, ticket=ticket), step)
        is_late = any("begin another" in str(error) for error in errors)
        if errors and not is_late:
            scaler.update(ticket=ticket)
        return scaler.get_scale(), is_late, two.tolist()

    def check(run):
        scale, is_late, param = run.value
        assert scale == (16.0 if is_late else 4.0)
        assert param == [0.0, 0.0]

    explore(program, check)


def test_schedules_of_later_ticket_during_update():
    # The advertised use: one thread updates while another one steps a later ticket.
    def program(c):
        instrument(c)
        scaler, (param, optimizer) = make(1), a_parameter()
        first, second = scaler.begin_iteration(), scaler.begin_iteration()
        param.grad = torch.ones(2)
        scaler.step(optimizer, ticket=first)
        later, other = a_parameter()
        later.grad = torch.ones(2)
        update = partial(scaler.update, ticket=first)
        errors = race(c, update, partial(scaler.step, other, ticket=second))
        scaler.update(ticket=second)
        return errors, scaler.get_scale()

    explore(program, expect(([], 32.0)))


def test_schedules_of_two_updates():
    def program(c):
        instrument(c)
        scaler = make(1)
        ticket = scaler.begin_iteration()
        updates = [partial(scaler.update, scale, ticket=ticket) for scale in (2.0, 4.0)]
        return len(race(c, *updates)), scaler.get_scale() in (2.0, 4.0)

    explore(program, expect((1, True)))


# ------------------------------------------------------------------ close and failure


@pytest.mark.parametrize("closes", ["scaler", "thread"])
def test_close_at_any_point(closes):
    # Calls that wait, and calls that work, end; those that raise say that the scaler is closed.
    def program(c):
        instrument(c, watches=False)
        thread = OptimizerThread(device="cpu")
        scaler, (param, optimizer) = make(executor=thread), a_parameter()
        scaler.scale((param * WEIGHTS).sum()).backward()

        def loop():
            scaler.step(optimizer)
            scaler.update()

        def close():
            scaler.close() if closes == "scaler" else thread.close(None)

        errors = race(c, loop, close)
        thread.close(None)
        return [
            error for error in errors if not isinstance(error, ClosedError)
        ], scaler.state_dict()

    def check(run):
        errors, saved = run.value
        assert errors == []
        assert saved["scale"] in (8.0, 16.0)

    explore(program, check)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("fails_at", [0, 1])
def test_failed_step_function_reaches_client(depth, fails_at):
    def program(c):
        instrument(c, watches=False)
        thread = OptimizerThread(device="cpu")
        scaler, errors = make(depth, executor=thread), []

        def fails():
            raise OSError("disk full")

        def client():
            for i in range(2):
                param, _ = a_parameter()
                scaler.scale((param * WEIGHTS).sum()).backward()
                thread.launch(
                    *((fails,) if i == fails_at else (a_step, scaler, param, False))
                )
                scaler.update()
            scaler.synchronize()

        for call in (client, partial(thread.close, None)):
            try:
                call()
            except RuntimeError as error:
                errors.append(error)
        return errors, scaler.state_dict()["scale"]

    def check(run):
        errors, scale = run.value
        assert scale in (8.0, 16.0)
        for error in errors:
            while not isinstance(error, OSError):
                error = error.__cause__
        assert len(errors) == 2

    explore(program, check)


class DroppingExecutor:
    """Runs functions on a thread, until it ends at a point of the schedule and drops the rest."""

    def __init__(self, c, limit):
        self.jobs, self.limit = c.sync.Queue(), limit
        c.sync.Thread(target=self.run, name="worker", daemon=True).start()

    def run(self):
        for _ in range(self.limit):
            if (job := self.jobs.get()) is not None:
                job()

    def __call__(self, job):
        if self.limit <= 0:
            raise RuntimeError("the worker has ended")
        self.jobs.put(job)


@pytest.mark.parametrize("limit", range(1, 4))
def test_close_ends_waits_for_dead_executor(limit):
    # An executor that is no Future cannot tell that it has ended. `close` then frees who waits for
    # it.
    def program(c):
        instrument(c, watches=False)
        scaler, (param, optimizer) = (
            make(executor=DroppingExecutor(c, limit)),
            a_parameter(),
        )

        def client():
            scaler.scale((param * WEIGHTS).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            scaler.scale(torch.tensor(1.0))
            scaler.update(2.0, is_async=False)

        errors = race(c, client, scaler.close)
        return [error for error in errors if not isinstance(error, ClosedError)]

    explore(program, expect([]))


def lone_client_program(depth):
    """A client thread that works while another one waits for it; the main thread closes at the
    end.
    """

    def program(c):
        instrument(c)
        scaler = make(depth)
        first = scaler.begin_iteration()

        def client():
            param, optimizer = a_parameter()
            scaler.scale((param * WEIGHTS).sum(), ticket=first).backward()
            scaler.step(optimizer, ticket=first)
            scaler.update(ticket=first)

        def waiter():
            with suppress(ClosedError):
                for _ in range(depth + 1):
                    scaler.begin_iteration()

        c.spawn("client", client)
        c.spawn("waiter", waiter)
        c.sync.Event().wait(timeout=1.0)  # until neither can go on
        scaler.close()
        return scaler.state_dict()["scale"]

    return program


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("task", ["client", "waiter"])
def test_unguarded_interrupt_causes_no_deadlock(depth, task):
    program = lone_client_program(depth)
    for step in range(len(scheduler.run(program).trace)):
        done = scheduler.attempt(program, interrupt_at={step: task})
        assert done.failure is None, str(done)
        assert done.value in (8.0, 16.0)


# ----------------------------------------------------------------------------------- interrupts


def interrupted_program(depth):
    """A drop-in loop that closes at its end, as a script would; an interrupt may strike
    anywhere.
    """

    def program(c):
        instrument(c)
        thread = OptimizerThread(device="cpu")
        scaler = make(depth, executor=thread)

        def client():
            for overflows in PLAN[:2]:
                param, _ = a_parameter()
                scaler.scale((param * WEIGHTS).sum()).backward()
                thread.launch(a_step, scaler, param, overflows)
                scaler.update()
            scaler.synchronize()

        def guarded():
            try:
                client()
            except (KeyboardInterrupt, RuntimeError):
                pass  # RuntimeError: the optimizer's thread was struck
            finally:
                scaler.close()

        c.spawn("client", guarded).join()
        with suppress(RuntimeError):
            thread.close(None)
        return scaler.state_dict()["scale"]

    return program


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("task", ["client", "optimizer"])
def test_interrupt_causes_no_deadlock(depth, task):
    program = interrupted_program(depth)
    for step in range(len(scheduler.run(program).trace)):
        done = scheduler.attempt(program, interrupt_at={step: task})
        assert done.failure is None, str(done)
        assert done.value in (8.0, 4.0)


def repeated_program(depth):
    """A client that repeats what an interrupt ended, as in a notebook, while a second thread
    reads.
    """

    def program(c):
        instrument(c)
        thread = OptimizerThread(device="cpu")
        scaler, finished = make(depth, executor=thread), []

        def scale():
            while True:
                with suppress(KeyboardInterrupt):
                    return scaler.scale(torch.tensor(1.0))

        def update(new_scale):
            while scaler.get_scale(up_to_date=True) != new_scale:
                with suppress(KeyboardInterrupt):
                    scaler.update(new_scale)

        def client():
            for new_scale in (1.0, 2.0):
                scale()
                update(new_scale)
            finished.append(True)

        c.spawn("client", client).join()
        scaler.synchronize()
        thread.close(None)
        return scaler.state_dict() if finished else None

    return program


@pytest.mark.parametrize("depth", [0, 1])
def test_interrupted_call_is_atomic(depth):
    program = repeated_program(depth)
    undisturbed, finished = scheduler.run(program), 0
    for step in range(len(undisturbed.trace)):
        done = scheduler.attempt(program, interrupt_at={step: "client"})
        assert done.failure is None, str(done)
        if done.value is not None:  # else it struck outside of the calls
            assert done.value == undisturbed.value
            finished += 1
    assert finished > 20


@pytest.mark.parametrize("depth", [0, 1])
def test_interrupted_waiter_undoes_no_update(depth):
    # A second thread updates while the first one waits for its ticket and is interrupted.
    def program(c):
        instrument(c)
        scaler = make(depth)
        tickets = [scaler.begin_iteration() for _ in range(depth + 1)]

        def waits():
            with suppress(KeyboardInterrupt):
                scaler.update(4.0, ticket=scaler.begin_iteration())

        def updates():
            for ticket in tickets:
                scaler.update(2.0, ticket=ticket)

        threads = c.spawn("waiter", waits), c.spawn("updater", updates)
        for thread in threads:
            thread.join()
        state = scaler._shared.value
        return state.applied, len(state.iterations), scaler.get_scale()

    seen = set()
    for step in range(len(scheduler.run(program).trace)):
        for schedule in ({}, {step: 1}):
            done = scheduler.attempt(program, schedule, interrupt_at={step: "waiter"})
            assert done.failure is None, str(done)
            applied, begun, scale = done.value
            assert applied + begun in (depth + 1, depth + 2)
            assert scale == (4.0 if applied == depth + 2 else 2.0)
            seen.add(done.value)
    assert len(seen) > 1


# ----------------------------------------------------------------------------------------- fork


def child_of_fork(scaler, thread, optimizer):
    """Return in a child process how many calls raise ForkedError; none may wait."""
    for shared in list(shared_state._registry):
        if shared._lock.locked():
            return -1  # by a thread that does not exist here
        shared._sync = threading  # the scheduler has no threads here either
        shared.after_fork()
    calls = (
        scaler.begin_iteration,
        scaler.update,
        partial(scaler.scale, torch.tensor(1.0)),
        partial(scaler.step, optimizer),
        partial(thread.launch, print),
        thread.synchronize,
        thread.close,
    )
    raised = 0
    for call in calls:
        try:
            call()
        except ForkedError:
            raised += 1
        except ClosedError as error:
            raised += isinstance(error.__cause__, ForkedError)
    return raised if scaler.get_scale() > 0.0 else 0


class ForkAt:
    """The schedule that runs the task "fork" at a step, and else keeps a task running."""

    def __init__(self, step):
        self.step = step

    def __call__(self, step, names):
        others = [place for place, name in enumerate(names) if name != "fork"]
        is_turn = step >= self.step and len(others) < len(names)
        return names.index("fork") if is_turn or not others else others[0]


# In its own process: a process group that a DTensor test left in the main thread hangs the child of
# another thread.
@pytest.mark.own_process
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.deep)])
def test_fork_at_any_point(stride):
    # With the optimizer's thread and the client at any point, locks taken or not.
    def program(c):
        instrument(c)
        thread = OptimizerThread(device="cpu")
        scaler, (param, optimizer) = make(1, executor=thread), a_parameter()
        scaler.scale((param * WEIGHTS).sum()).backward()
        status = []

        def client():
            scaler.step(optimizer)
            scaler.update()
            scaler.scale(torch.tensor(1.0))

        def fork():
            with mock.patch.object(TaskRunner, "switch", return_value=True):
                pid = os.fork()
                if pid == 0:  # where there is nobody to switch to
                    os._exit(child_of_fork(scaler, thread, optimizer) % 256)
            watchdog = threading.Timer(60.0, os.kill, (pid, signal.SIGKILL))
            watchdog.start()
            status.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            watchdog.cancel()

        threads = c.spawn("client", client), c.spawn("fork", fork)
        for one in threads:
            one.join()
        scaler.synchronize()
        thread.close(None)
        return status, param.tolist(), scaler.get_scale(up_to_date=True)

    for step in range(0, len(scheduler.run(program, ForkAt(10**6)).trace), stride):
        assert scheduler.run(program, ForkAt(step)).value == ([7], [-1.0, -2.0], 16.0)
