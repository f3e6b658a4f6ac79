"""Level 3: real threads under the scheduler, in the orders with the fewest preemptions.

What a scaler's module and classes took from `threading` and `queue` is replaced by the scheduler's
while a program runs, and each access to an attribute of the scaler is a point where another thread
may run. A scaler that blocks on a lock from elsewhere would block the run: it declares that it does
not support threads.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from types import ModuleType
from typing import Any, cast

import torch

from ampsim.core.machine import Rule
from ampsim.testing import scheduler
from ampsim.testing.scaler_checks.check import check
from ampsim.testing.scaler_checks.example import Example
from ampsim.testing.scaler_checks.subject import Subject

STEPS = 3000  # of one run, at most
LIMIT = 200  # schedules, the fewest preemptions first, of at most 2
RULE = Rule(init_scale=8.0, growth_interval=2)
OVERFLOWS = (True, False, False)  # the first and the last change the scale
SHOWN = 4  # turns of one thread, the last ones of a failing schedule
ROUNDPIPE = "https://github.com/ITcarrot/RoundPipe/blob/main/docs/API/grad_scaler.en.md"


def instrumented(c: scheduler.Scheduler, subject: Subject) -> Any:
    """Make a scaler whose locks are the scheduler's and whose attributes are switch points."""
    kind = type(subject.example)
    for owner in kind.__mro__[:-1]:
        c.patch(cast("ModuleType", owner))  # a class is a namespace too
        c.patch(sys.modules[owner.__module__])
    scaler = subject.make(subject.traits.possible(RULE))
    if shared := vars(scaler):
        c.watch(kind, *shared)
    return scaler


def explore(example: Example, program: Callable[[scheduler.Scheduler], object]) -> None:
    """Run a program in many orders; fail with the last turns of the first that fails as the
    example's events.
    """
    example.requested = RULE
    try:
        with scheduler.one_core():
            scheduler.explore(program, preemptions=2, limit=LIMIT, max_steps=STEPS)
    except scheduler.FailingScheduleError as found:
        for task, steps in groupby(found.run.trace, key=lambda step: step.task):
            *_, last = steps
            example.events.append(f"{task} up to {last.op} {last.subject}")
        example.events[:-SHOWN] = ["..."] * (len(example.events) > SHOWN)
        raise found.run.failure or found from None


def parameter(overflows: bool) -> torch.nn.Parameter:
    """Return a parameter of zeros, whose gradient overflows or not."""
    param: Any = torch.nn.Parameter(torch.zeros(2))
    bad = torch.tensor([False, overflows])
    param.register_hook(lambda grad: torch.where(bad, float("inf"), grad))
    return cast("torch.nn.Parameter", param)


def assert_stepped(param: torch.nn.Parameter, overflows: bool) -> None:
    """Check that a parameter is minus its gradient, as with a learning rate of 1, or that it was
    skipped.
    """
    expected = [0.0, 0.0] if overflows else [-3.0, -3.0]
    assert param.tolist() == expected, (
        f"parameters became {param.tolist()}, expected {expected}"
    )


@check(3, needs="threads")
def two_threads_step_two_optimizers(example: Example) -> None:
    """Two threads step one optimizer each, in any order; an overflow skips its own optimizer and
    backs off.
    """

    def program(c: scheduler.Scheduler) -> None:
        scaler = instrumented(c, example.subject)
        params = [parameter(overflows) for overflows in OVERFLOWS[:2]]
        optimizers = [torch.optim.SGD([param], lr=1.0) for param in params]
        scaler.scale(sum((3 * param).sum() for param in params)).backward()

        def work(optimizer: torch.optim.Optimizer) -> None:
            scaler.unscale_(optimizer)
            scaler.step(optimizer)

        for thread in [
            c.spawn(f"optimizer {i}", work, each) for i, each in enumerate(optimizers)
        ]:
            thread.join()
        scaler.update()
        for param, overflows in zip(params, OVERFLOWS, strict=False):
            assert_stepped(param, overflows)
        scale = scaler.get_scale()
        expected = example.expected_scales([True], init_scale=8.0, growth_interval=2)[
            -1
        ]
        assert scale == expected, f"the scale is {scale}, expected {expected}"

    explore(example, program)


@check(3, issue=ROUNDPIPE, needs="threads tickets")
def queued_gradients_keep_their_scale(example: Example) -> None:
    """With the optimizer on its own thread, every gradient is divided by the scale of its loss."""

    def program(c: scheduler.Scheduler) -> None:
        scaler = instrumented(c, example.subject)
        queue = c.sync.Queue()
        params = [parameter(overflows) for overflows in OVERFLOWS]

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
        for param, overflows in zip(params, OVERFLOWS, strict=True):
            assert_stepped(param, overflows)

    explore(example, program)


@check(3, needs="threads state_dict")
def state_dict_is_atomic(example: Example) -> None:
    """A state dict taken by another thread is the one before or after an update, never a mix.

    A scaler may raise during an iteration.
    """

    def program(found_inf: Sequence[bool], c: scheduler.Scheduler) -> None:
        scaler = instrumented(c, example.subject)
        states = []
        taken = []

        def save() -> None:
            with suppress(RuntimeError):
                taken.append(scaler.state_dict())

        for overflows in found_inf:
            states.append(scaler.state_dict())
            param = parameter(overflows)
            scaler.scale((3 * param).sum()).backward()
            scaler.step(torch.optim.SGD([param], lr=1.0))
            if len(states) == len(found_inf):
                checkpoint = c.spawn("checkpoint", save)
            scaler.update()
        checkpoint.join()
        states.append(scaler.state_dict())
        whole = all(each in states[-2:] for each in taken)
        assert whole, f"{taken[:1]}, expected one of {states[-2:]}"

    # In the last iteration the scale changes together with the growth tracker, or with the count
    # of overflows of a hysteresis.
    explore(example, partial(program, [False, False]))
    if example.traits.hysteresis > 1:
        explore(example, partial(program, [True] * example.traits.hysteresis))
