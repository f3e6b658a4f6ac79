"""Level 3: real threads under the scheduler, in the orders with the fewest preemptions.

The scaler knows nothing of it: what its module and its classes took from `threading` and `queue` is exchanged
for the scheduler's while a program runs, and each access to an attribute of the scaler is a place where another
thread may go on. A scaler that blocks on a lock from elsewhere would block the run: it declares to be without
threads, and is tested by other means.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from types import ModuleType
from typing import cast

import torch

from ampsim.core.machine import Rule
from ampsim.testing import scheduler
from ampsim.testing.kit.check import check
from ampsim.testing.kit.example import Example
from ampsim.testing.kit.expected import scales
from ampsim.testing.kit.subject import Scaler, Subject

STEPS = 3000  # of one run, at most
LIMIT = 200  # schedules, the fewest preemptions first, of at most 2
RULE = Rule(init_scale=8.0, growth_interval=2)
PLAN = (True, False, False)  # overflows; the first and the last change the scale
SEGMENTS = 4  # of a failing schedule: turns of one thread, the last ones
ROUNDPIPE = "https://github.com/ITcarrot/RoundPipe/blob/main/docs/API/grad_scaler.en.md"


def instrumented(c: scheduler.Scheduler, subject: Subject) -> Scaler:
    """Make a scaler whose locks are the scheduler's and whose attributes are switch points."""
    for owner in subject.kind.__mro__[:-1]:
        c.patch(cast("ModuleType", owner))  # a class is a namespace too
        c.patch(sys.modules[owner.__module__])
    scaler = subject.make(subject.traits.possible(RULE))
    shared = [name for name in vars(scaler) if not callable(getattr(subject.kind, name, None))]
    if shared:
        c.watch(subject.kind, *shared)
    return scaler


def _explore(example: Example, program: Callable[[scheduler.Scheduler], object]) -> None:
    example.requested = RULE
    with scheduler.one_core():
        if example.schedule is not None:
            _report(
                example, scheduler.attempt(program, example.schedule, max_steps=STEPS), shown=STEPS
            )
            return
        try:
            scheduler.explore(program, preemptions=2, limit=LIMIT, max_steps=STEPS)
        except scheduler.FailingScheduleError as failure:
            _report(example, failure.run, shown=SEGMENTS)


def _report(example: Example, run: scheduler.Run, *, shown: int) -> None:
    """Fail with the problem of a run and its last turns, if there was one."""
    if run.failure is None:
        return
    for task, steps in groupby(run.trace, key=lambda step: step.task):
        *_, last = steps
        example.note(f"{task} up to {last.op} {last.subject}")
    example.events[:-shown], example.failing = ["..."] * (len(example.events) > shown), run.schedule
    raise run.failure


def _gradient(overflows: bool) -> torch.nn.Parameter:
    param = torch.nn.Parameter(torch.zeros(2))
    param.register_hook(
        lambda grad: torch.where(torch.tensor([False, overflows]), float("inf"), grad)
    )
    return param


def _moved(param: torch.nn.Parameter, overflows: bool) -> None:
    """Fail unless the parameter is minus its gradient, as with a learning rate of 1, or untouched."""
    expected = [0.0, 0.0] if overflows else [-3.0, -3.0]
    assert param.tolist() == expected, f"parameters became {param.tolist()}, expected {expected}"


@check(3, needs="threads")
def two_threads_step_two_optimizers(example: Example) -> None:
    """Two threads step one optimizer each, in any order; an overflow skips its own optimizer and backs off."""

    def program(c: scheduler.Scheduler) -> None:
        scaler = instrumented(c, example.subject)
        params = [_gradient(overflows) for overflows in PLAN[:2]]
        optimizers = [torch.optim.SGD([param], lr=1.0) for param in params]
        scaler.scale(sum((3 * param).sum() for param in params)).backward()

        def work(optimizer: torch.optim.Optimizer) -> None:
            scaler.unscale_(optimizer)
            scaler.step(optimizer)

        for thread in [c.spawn(f"optimizer {i}", work, each) for i, each in enumerate(optimizers)]:
            thread.join()
        scaler.update()
        for param, overflows in zip(params, PLAN, strict=False):
            _moved(param, overflows)
        scale, expected = scaler.get_scale(), scales(example.traits, RULE, PLAN[:1])[-1]
        assert scale == expected, f"the scale is {scale}, expected {expected}"

    _explore(example, program)


@check(3, issue=ROUNDPIPE, needs="threads tickets")
def queued_gradients_keep_their_scale(example: Example) -> None:
    """With the optimizer on its own thread, every gradient is divided by the scale of its loss."""

    def program(c: scheduler.Scheduler) -> None:
        scaler, queue = instrumented(c, example.subject), c.sync.Queue()
        params = [_gradient(overflows) for overflows in PLAN]

        def optimizer() -> None:
            for param in params:
                options = queue.get()
                scaler.step(torch.optim.SGD([param], lr=1.0), **options)
                scaler.update(**options)

        thread = c.spawn("optimizer", optimizer)
        for param in params:
            options = {"ticket": scaler.begin_iteration()}
            scaler.scale((3 * param).sum(), **options).backward()
            queue.put(options)
        thread.join()
        for param, overflows in zip(params, PLAN, strict=True):
            _moved(param, overflows)

    _explore(example, program)


@check(3, needs="threads state_dict")
def state_dict_is_atomic(example: Example) -> None:
    """A state dict taken by another thread is the one before or after an update, never a mix.

    A scaler may raise during an iteration.
    """

    def program(c: scheduler.Scheduler) -> None:
        scaler, states, seen = instrumented(c, example.subject), [], []

        def save() -> None:
            with suppress(RuntimeError):
                seen.append(scaler.state_dict())

        for overflows in reversed(
            PLAN[:2]
        ):  # the growth tracker is 1, then it and the scale change together
            states.append(scaler.state_dict())
            param = _gradient(overflows)
            scaler.scale((3 * param).sum()).backward()
            scaler.step(torch.optim.SGD([param], lr=1.0))
            if overflows:
                checkpoint = c.spawn("checkpoint", save)
            scaler.update()
        checkpoint.join()
        states.append(scaler.state_dict())
        assert all(each in states[1:] for each in seen), f"{seen[:1]}, expected one of {states[1:]}"

    _explore(example, program)
