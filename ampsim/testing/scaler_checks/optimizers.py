"""Level 2: several optimizers, groups and micro-batches; one scale for all of them."""

import math
from contextlib import suppress
from typing import Any

import torch
from hypothesis import strategies as st

from ampsim.testing.scaler_checks.adapter import Flags, ScalerAdapter, gradient, sgd
from ampsim.testing.scaler_checks.check import check
from ampsim.testing.scaler_checks.strategies import (
    FINITE,
    FLAGS,
)

Three = tuple[bool, bool, bool]  # found_inf of three optimizers


def several(count: int, **options: Any) -> tuple[list[Any], list[Any]]:
    """Return parameters of three ones, and an optimizer of each."""
    pairs = [sgd(3, value=1.0, **options) for _ in range(count)]
    return [param for param, _ in pairs], [optimizer for _, optimizer in pairs]


@check(2, issue="NVIDIA/apex#179", needs="optimizers", found_inf=FLAGS)
def optimizers_share_one_scale(case: ScalerAdapter, found_inf: list[Three]) -> None:
    """Overflows in any optimizers count as one; each skips its own optimizer, or all, as
    `Traits.skips` declares.
    """
    scaler = case.make(growth_interval=3)
    params, optimizers = several(3, lr=0.125, momentum=0.9)
    expected = case.expected_scales(found_inf, growth_interval=3)
    for overflows, due in zip([*found_inf, FINITE], expected):
        before = [param.tolist() for param in params]
        scale = case.iterate(scaler, *overflows, optimizers=optimizers)
        assert scale == due, f"the scale is {scale}, expected {due}"
        for param, was, own in zip(params, before, overflows):
            overflow = any(overflows) if case.traits.skips == "all" else own
            stepped = param.tolist() != was
            assert stepped != overflow, f"found_inf={overflow}, stepped={stepped}"


@check(2, needs="setters growth", lowered=st.integers(1, 4), tracker=st.integers(1, 8))
def growth_continues_after_interval_is_lowered(
    case: ScalerAdapter, lowered: int, tracker: int
) -> None:
    """After the interval is lowered to the growth tracker or below, the scale grows within one new
    interval.
    """
    scaler = case.make(growth_interval=9)
    case.iterate_each(scaler, [False] * tracker)
    scaler.set_growth_interval(lowered)
    steps = [False] * (lowered + case.traits.delay + 1)
    before, *_, after = case.iterate_each(scaler, steps)
    grows = after > before or before == case.traits.max_scale
    assert grows, f"the scale is still {after}"


@check(
    2,
    issue="huggingface/accelerate#641",
    micro=st.lists(st.booleans(), min_size=2, max_size=4),
)
def overflow_in_any_micro_batch_skips(case: ScalerAdapter, micro: Flags) -> None:
    """Gradients accumulate over micro-batches at one scale, and an overflow in any of them skips
    the step.
    """
    scaler = case.make(growth_interval=3)
    param = case.param
    scales = set[float]()
    for overflows in micro:
        scaler.scale((param * (math.inf if overflows else 1.0)).sum()).backward()
        scales.add(case.loss_scale(scaler))
    text = f"the losses of one step were multiplied by {sorted(scales)}"
    assert len(scales) == 1, text
    scaler.step(case.optimizer)
    expected = 1.0 if any(micro) else 1.0 - 0.125 * len(micro)
    got = param.tolist()
    assert got == [expected] * 3, f"parameters became {got}, expected {expected}"
    scaler.update()


@check(
    2,
    needs="optimizers unscale_",
    steps=st.tuples(st.booleans(), st.booleans()),
    which=st.integers(0, 1),
)
def unscaled_overflow_backs_off(
    case: ScalerAdapter, steps: tuple[bool, bool], which: int
) -> None:
    """An overflow that unscale_() finds makes update() back off, whether or not the optimizer is
    stepped.
    """
    scaler = case.make(growth_interval=3)
    due = case.backed_off_scale()
    scale = case.loss_scale(scaler)
    for i, stepped in enumerate(steps):
        param, optimizer = sgd(3, value=1.0)
        param.grad = gradient(scale, i == which)
        scaler.unscale_(optimizer)
        if stepped:
            scaler.step(optimizer)
    case.assert_backs_off(scaler, due)


@check(2, needs="optimizers", overflows=st.booleans(), unscales=st.booleans())
def update_between_steps_keeps_gradients_correct(
    case: ScalerAdapter, overflows: bool, unscales: bool
) -> None:
    """After an update() between two steps of one loss, the second step divides by the scale of the
    loss, or raises.
    """
    scaler = case.make(init_scale=1024.0, growth_interval=1)
    (one, two), (first, second) = several(2)
    factor = math.inf if overflows else 3.0
    loss = (one * factor).sum() + (two * 3.0).sum()
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.update()
    true = 3.0
    try:
        if unscales:
            scaler.unscale_(second)
        scaler.step(second)
        scaler.update()
    except Exception:  # a scaler may raise
        true = 0.0
    seen = (1.0 - two)[0].item()
    moved = one.tolist()
    text = f"optimizer 1 saw a gradient of {seen}, expected {true}"
    assert two.tolist() == [1.0 - true] * 3, text
    due = 1.0 if overflows else -2.0
    assert moved == [due] * 3, f"the first parameters became {moved}"


@check(2, needs="optimizers")
def optimizers_with_reused_id_are_distinct(case: ScalerAdapter) -> None:
    """A new optimizer with the id() of a deleted one is treated as a new optimizer."""
    scaler = case.make(growth_interval=3)
    raised = []
    case.loss_scale(scaler)
    # Many get the id of the one before, and which ones differs by process.
    for _ in range(64):
        param = torch.nn.Parameter(torch.ones(2))
        param.grad = torch.ones(2)
        try:
            scaler.step(torch.optim.SGD([param], lr=0.125))
        except Exception as error:
            raised.append(repr(error))
    assert not raised, f"the step of a new optimizer raised {raised[0]}"


@check(
    2,
    needs="optimizers gradients",
    fused=st.booleans(),
    unscales=st.booleans(),
)
def gradients_are_divided_once(
    case: ScalerAdapter, fused: bool, unscales: bool
) -> None:
    """The gradient of a parameter in two optimizers is divided by the scale once, or the second
    call raises.
    """
    scaler = case.make(init_scale=1024.0)
    shared = torch.nn.Parameter(torch.zeros(3))
    optimizers = [torch.optim.SGD([shared], lr=1.0, fused=fused) for _ in range(2)]
    shared.grad = torch.full((3,), 3.0 * case.loss_scale(scaler))
    steps = 0
    with suppress(Exception):  # a scaler may raise for a gradient that it has divided
        if unscales:
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
        for optimizer in optimizers:
            scaler.step(optimizer)
            steps += 1
    moved = (-shared).tolist()
    true = 3.0 * steps
    text = f"{steps} steps with a gradient of 3.0 moved it by {moved}"
    assert moved == [true] * 3, text
