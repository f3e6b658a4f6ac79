"""Every schedule: the register, and the whole scaler with its optimizer thread, under the scheduler.

Whatever the schedule, each ticket's scale, what each step did and the newest scale are what `core.pipeline`
says (confluence); nobody waits for ever; and an interrupt at any point leaves nobody waiting either.
"""

from contextlib import suppress
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim.core import pipeline
from ampsim.core.machine import Rule
from ampsim.testing import scheduler
from ampsim.torch import ClosedError, GradScaler, OptimizerThread
from ampsim.torch.step import records
from ampsim.torch.threads import iterations
from ampsim.torch.threads.register import Register
from tests.torch.helpers import INF

RULE = Rule(init_scale=8.0, growth_interval=1, min_scale=2.0**-126)
WEIGHTS = torch.tensor([1.0, 2.0])


class Outcome:
    """A plan of iterations and what the model says that it leads to."""

    def __init__(self, depth, plan, is_async=None):
        self.depth, self.plan = depth, plan
        self.is_async = is_async or [True] * len(plan)
        pipe = pipeline.start(RULE, depth)
        for ticket, overflows in enumerate(plan):
            while len(pipe.carried) <= ticket:
                pipe = pipeline.begin_iteration(pipe)
            pipe = pipeline.finish(pipe, ticket, overflows, synchronous=not self.is_async[ticket])
        self.scales = [pipe.scale(ticket) for ticket in range(len(plan))]
        self.params = [[0.0, 0.0] if overflows else [-1.0, -2.0] for overflows in plan]
        self.newest = pipe.versions[-1].scale

    def check(self, run):
        assert run.value == (self.scales, self.params, self.newest)


# ----------------------------------------------------------------------------------------------- the programs


def make(c, outcome, watch=True, **options):
    """A GradScaler on the scheduler's locks; if `watch`, what its threads share without a lock is a switch point."""
    if watch:
        c.watch(Register, "_book", "_closed")
        c.watch(iterations.Iterations, "_requested", "register")
        c.watch(records.StepRecords, "_records")
        c.watch(records.Record, "stage", "is_held")
    options = {
        "init_scale": RULE.init_scale,
        "growth_interval": 1,
        "depth": outcome.depth,
        **options,
    }
    return type("GradScaler", (GradScaler,), {"_sync": c.sync})("cpu", **options)


def a_step(scaler, param, overflows, ticket=None):
    if overflows:
        param.grad[1] = INF
    scaler.step(torch.optim.SGD([param], lr=1.0), ticket=ticket)


def drop_in_program(outcome, watch=True):
    """The loop of RoundPipe: the client scales and runs backward, the optimizer's thread steps and updates."""

    def program(c):
        thread = OptimizerThread(sync=c.sync)
        scaler = make(c, outcome, watch, launch=thread.launch)
        scales, params = [], []
        try:
            for i, overflows in enumerate(outcome.plan):
                param = torch.nn.Parameter(torch.zeros(2))
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
            thread.close()
        return scales, [param.tolist() for param in params], newest

    return program


def ticket_program(outcome, watch=True):
    """A pipeline of its own threads that passes tickets: one begins and scales, one steps and updates."""

    def program(c):
        scaler = make(c, outcome, watch)
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
            param = torch.nn.Parameter(torch.zeros(2))
            loss = scaler.scale((param * WEIGHTS).sum() + 1.0, ticket=ticket)
            scales.append(loss.item())
            loss.backward()
            params.append(param)
            handed_over.put((ticket, param))
        handed_over.put(None)
        worker.join()
        return scales, [param.tolist() for param in params], scaler.get_scale(up_to_date=True)

    return program


PROGRAMS = {"drop in": drop_in_program, "tickets": ticket_program}
PLAN = [True, False, False]


def every_schedule_ends_in(expected, program, preemptions=1):
    def check(run):
        assert run.value == expected

    assert scheduler.explore(program, preemptions=preemptions, check=check).exhausted


def explore(name, depth, plan=PLAN, preemptions=1, is_async=None, watch=True):
    outcome = Outcome(depth, plan, is_async)
    seen = scheduler.explore(
        PROGRAMS[name](outcome, watch), preemptions=preemptions, check=outcome.check
    )
    assert seen.exhausted
    return seen


# ------------------------------------------------------------------------------------------------- confluence


@pytest.mark.parametrize(
    "watch", [True, False]
)  # fewer iterations where there are more switch points
@pytest.mark.parametrize("depth", [0, 1])
def test_schedules_of_drop_in_loop(depth, watch):
    explore("drop in", depth, PLAN[: 2 if watch else 3], watch=watch)


def test_schedules_with_synchronous_updates():
    explore("drop in", 1, PLAN[:2], is_async=[False, True])


@pytest.mark.parametrize("depth", [0, 1])
def test_schedules_of_pipeline_with_tickets(depth):
    explore("tickets", depth)


@pytest.mark.deep
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("name", [*PROGRAMS])
def test_schedules_with_two_preemptions(name, depth, capsys):
    seen = explore(name, depth, preemptions=2)
    with capsys.disabled():
        print(f"\n{name}, depth {depth}: {seen}")


@settings(max_examples=60)
@given(
    name=st.sampled_from([*PROGRAMS]),
    depth=st.integers(0, 3),
    plan=st.lists(st.booleans(), min_size=1, max_size=4),
    schedule=scheduler.schedules(steps=400),
)
def test_confluence_for_generated_schedules(name, depth, plan, schedule):
    outcome = Outcome(depth, plan)
    outcome.check(scheduler.run(PROGRAMS[name](outcome), schedule))


# ------------------------------------------------------------------------------------------- beginning, ending


@pytest.mark.parametrize("preemptions", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_schedules_of_two_first_scales(preemptions):
    """The scale is made once and one ticket is begun, whoever comes first."""

    def program(c):
        scaler = make(c, Outcome(1, []))
        seen = []

        def scales():
            seen.append(scaler.scale(torch.tensor(1.0)).item())

        for thread in [c.spawn(name, scales) for name in "ab"]:
            thread.join()
        scaler.update(2.0)
        return seen, scaler.state_dict()["pending"]  # refused if another ticket is outstanding

    every_schedule_ends_in(([8.0, 8.0], [2.0]), program, preemptions)


def test_schedules_of_concurrent_steps():
    """One gets through; the gradients are divided once and the step is taken once."""

    def program(c):
        scaler = make(c, Outcome(0, []))
        param = torch.nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([param], lr=1.0)
        scaler.scale((param * WEIGHTS).sum()).backward()
        told = []

        def acts(act):
            try:
                act(optimizer)
            except RuntimeError as error:
                told.append(str(error))

        for thread in [c.spawn("a", acts, scaler.step), c.spawn("b", acts, scaler.unscale_)]:
            thread.join()
        if not param.any():
            scaler.step(optimizer)  # b was there while a came
        return param.tolist(), param.grad.tolist(), told

    def check(run):
        params, gradient, told = run.value
        assert (params, gradient) == ([-1.0, -2.0], [1.0, 2.0])
        assert all("called" in text or "another call" in text for text in told), told
        assert len(told) <= 1

    assert scheduler.explore(program, preemptions=1, check=check).exhausted


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("late", ["unscale_", "step", "unscale_and_clip_"])
def test_schedules_of_call_during_update(late, depth):
    """It raises: the gradients are divided once, and the scaler can be saved."""

    def program(c):
        scaler = make(c, Outcome(depth, []))
        param = torch.nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([param], lr=1.0)
        ticket = scaler.begin_iteration()
        scaler.scale((param * WEIGHTS).sum(), ticket=ticket).backward()
        scaler.step(optimizer, ticket=ticket)
        told = []

        def comes_late():
            arguments = (1e9,) if late == "unscale_and_clip_" else ()
            try:
                getattr(scaler, late)(optimizer, *arguments, ticket=ticket)
            except RuntimeError as error:
                told.append(str(error))

        closes = c.spawn("closes", partial(scaler.update, ticket=ticket))
        comes = c.spawn("comes late", comes_late)
        for thread in (closes, comes):
            thread.join()
        scaler.state_dict()
        return param.grad.tolist(), param.tolist(), len(told)

    every_schedule_ends_in(([1.0, 2.0], [-1.0, -2.0], 1), program)


def test_schedules_of_concurrent_updates():
    def program(c):
        scaler = make(c, Outcome(1, []))
        ticket = scaler.begin_iteration()
        told = []

        def updates(new_scale):
            try:
                scaler.update(new_scale, ticket=ticket)
                told.append(new_scale)
            except RuntimeError:
                told.append("refused")

        for thread in [c.spawn("a", updates, 2.0), c.spawn("b", updates, 4.0)]:
            thread.join()
        return scaler.get_scale(), sorted(map(str, told))

    def check(run):
        scale, told = run.value
        assert told == [str(scale), "refused"]

    assert scheduler.explore(program, preemptions=1, check=check).exhausted


def test_schedules_of_close_unblock_waiters():
    def program(c):
        scaler = make(c, Outcome(0, []))
        scaler.begin_iteration()
        told = []

        def waits(call):
            try:
                call()
            except ClosedError:
                told.append("closed")

        calls = (scaler.begin_iteration, partial(scaler.begin_iteration, timeout=3600.0))
        threads = [c.spawn(f"waiter {number}", waits, call) for number, call in enumerate(calls)]
        scaler.close()
        for thread in threads:
            thread.join()
        return told

    every_schedule_ends_in(["closed"] * 2, program)


def failing_program(outcome, fails_at):
    """The drop-in loop, with a step function that raises; what the client and the thread's user are told."""

    def program(c):
        thread = OptimizerThread(sync=c.sync)
        scaler = make(c, outcome, watch=False, launch=thread.launch)
        told = []

        def fails():
            raise OSError("disk full")

        try:
            for i in range(len(outcome.plan)):
                param = torch.nn.Parameter(torch.zeros(2))
                scaler.scale((param * WEIGHTS).sum()).backward()
                thread.launch(*((fails,) if i == fails_at else (a_step, scaler, param, False)))
                scaler.update()
            scaler.synchronize()
        except RuntimeError as error:
            told.append(error)
        try:
            thread.close()
        except RuntimeError as error:
            told.append(error)
        return told

    return program


@pytest.mark.parametrize("depth", [0, 1])
def test_schedules_of_failing_step_function(depth):
    def check(run):
        causes = []
        for error in run.value:
            while error is not None:
                causes.append(type(error))
                error = error.__cause__
        assert OSError in causes, run.value

    for fails_at in (0, 1):
        program = failing_program(Outcome(depth, [False] * 2), fails_at)
        assert scheduler.explore(program, preemptions=1, check=check).exhausted


# --------------------------------------------------------------------------------------------------- interrupts


def interrupted_program(outcome):
    """A drop-in loop in a thread that interrupts may strike; `finally` closes, as a script would."""

    def program(c):
        thread = OptimizerThread(sync=c.sync)
        scaler = make(c, outcome, watch=False, launch=thread.launch)

        def client():
            for overflows in outcome.plan:
                param = torch.nn.Parameter(torch.zeros(2))
                scaler.scale((param * WEIGHTS).sum()).backward()
                thread.launch(a_step, scaler, param, overflows)
                scaler.update()
            scaler.synchronize()

        def guarded():
            try:
                client()
            except (KeyboardInterrupt, RuntimeError):
                pass  # RuntimeError: the optimizer's thread was struck, and tells
            finally:
                scaler.close()

        c.spawn("client", guarded).join()
        with suppress(RuntimeError):
            thread.close()

    return program


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("task", ["client", "optimizer"])
def test_interrupt_causes_no_deadlock(depth, task):
    program = interrupted_program(Outcome(depth, PLAN[:2]))
    for step in range(len(scheduler.run(program).trace)):
        done = scheduler.attempt(program, interrupt_at={step: task})
        assert done.failure is None, str(done)


def retried_program(depth, updates):
    """A client that, interrupted anywhere, looks where it stands and goes on, as in a notebook."""

    def program(c):
        thread = OptimizerThread(sync=c.sync)
        scaler = make(c, Outcome(depth, []), launch=thread.launch)
        finished = []

        def scale():
            while True:
                try:
                    return scaler.scale(torch.tensor(1.0))
                except KeyboardInterrupt:
                    pass

        def update(new_scale):
            while scaler.get_scale(up_to_date=True) != new_scale:
                with suppress(KeyboardInterrupt):
                    scaler.update(new_scale)

        def client():
            for i in range(updates):
                scale()
                update(2.0**i)
            finished.append(True)

        c.spawn("client", client).join()
        scaler.synchronize()
        thread.close()
        return scaler.state_dict() if finished else None

    return program


@pytest.mark.parametrize("depth", [0, 1])
def test_interrupted_call_is_atomic(depth):
    program = retried_program(depth, 2)
    undisturbed = scheduler.run(program)
    finished = 0
    for step in range(len(undisturbed.trace)):
        done = scheduler.attempt(program, interrupt_at={step: "client"})
        assert done.failure is None, str(done)
        if done.value is not None:  # else it struck outside of the calls
            assert done.value == undisturbed.value
            finished += 1
    assert finished > 20
