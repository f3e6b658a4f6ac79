"""Level 2: several optimizers, groups and micro-batches; one scale for all of them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from hypothesis import strategies as st

from ampsim.core import laws
from ampsim.core.machine import Rule
from ampsim.core.torch_model.refusals import Refusal
from ampsim.testing.kit.bench import Bench, sgd
from ampsim.testing.kit.check import check
from ampsim.testing.kit.strategies import FLAGS, Flags
from ampsim.testing.kit.trial import RULE, Trial, outcome

ROUNDS = 64  # the second or third optimizer mostly gets the id of the one before


@check(2, issue="NVIDIA/apex#179", flags=FLAGS)
def skip_is_per_optimizer(t: Trial, flags: Flags) -> None:
    """An optimizer is skipped because of its own gradients, not because of another's, or all are, as declared."""
    t.start(RULE, Bench(), Bench(), Bench())
    for each in flags:
        for own, step in zip(each, t.steps(*each), strict=True):
            found = any(each) if t.traits.skips == "all" else own
            seen = laws.skip_is_per_optimizer(replace(step, found_inf=found))
            t.require(seen is None, seen or "")


@check(2, group=st.integers(0, 2), bad=st.sampled_from([math.inf, -math.inf, math.nan]))
def overflow_in_any_parameter_group_skips(t: Trial, group: int, bad: float) -> None:
    """A gradient that is inf or NaN is found in whichever parameter group it is."""
    groups = Bench(lambda params: sgd([{"params": [param]} for param in params]), shapes=((3,), (2,), ()))  # type: ignore[misc]
    t.start(RULE, groups)
    groups.put(t.loss_scale())
    groups.grad(group).view(-1)[0] = bad
    before = groups.held()
    t.log_event(f"{bad} in group {group}")
    t.scaler.step(groups.optimizer)
    t.require(groups.held() == before, "the optimizer stepped")


@check(2, issue="huggingface/accelerate#641", micro=st.lists(st.booleans(), min_size=2, max_size=4))
def overflow_in_any_micro_batch_skips(t: Trial, micro: list[bool]) -> None:
    """Gradients accumulate over micro-batches under one scale, and an overflow in any of them skips the step."""
    t.start(RULE)
    (bench,) = t.benches
    for overflows in micro:
        t.log_event("micro-batch " + ("inf" if overflows else "clean"))
        loss = (bench.params[0] * (math.inf if overflows else 1.0)).sum()
        t.scaler.scale(loss).backward()
    before = bench.params[0].detach().clone()
    t.scaler.step(bench.optimizer)
    moved = (before - bench.params[0]).detach()
    expected = 0.0 if any(micro) else 0.125 * len(micro)
    t.require(torch.equal(moved, torch.full((3,), expected)), f"parameters moved by {moved}, expected {expected}")
    t.scaler.update()


@check(2, needs="unscale_", steps=st.tuples(st.booleans(), st.booleans()), which=st.integers(0, 1))
def overflow_that_is_unscaled_backs_off(t: Trial, steps: tuple[bool, bool], which: int) -> None:
    """An overflow that unscale_() has found is one for update(), whether or not the optimizer is stepped."""
    t.start(RULE, Bench(), Bench())
    scale = t.loss_scale()
    for i, (bench, stepped) in enumerate(zip(t.benches, steps, strict=True)):
        bench.put(scale, math.inf if i == which else None)
        t.log_event(f"unscale_ {'inf' if i == which else 'clean'}" + (", step" if stepped else ""))
        t.scaler.unscale_(bench.optimizer)
        if stepped:
            t.scaler.step(bench.optimizer)
    t.scaler.update()
    t.follows_an_overflow()


def _backward(t: Trial, interval: int, overflows: Sequence[bool]) -> None:
    """Start with an optimizer per flag, all of one loss, whose true gradients are 3, and inf where it overflows."""
    sgd1 = partial(torch.optim.SGD, lr=1.0)
    t.start(Rule(init_scale=1024.0, growth_interval=interval), *[Bench(sgd1) for _ in overflows])
    pairs = zip(t.benches, overflows, strict=True)
    loss = sum((bench.params[0] * (math.inf if flag else 3.0)).sum() for bench, flag in pairs)
    t.scaler.scale(loss).backward()
    t.log_event("backward of one loss")


def _require_true_steps(t: Trial, taken: Sequence[bool]) -> None:
    """Fail unless each parameter has moved by its true gradient, or, where no step is to be taken, not at all."""
    for i, (bench, moves) in enumerate(zip(t.benches, taken, strict=True)):
        seen = (1.0 - bench.params[0]).tolist()
        t.require(seen == [3.0 * moves] * 3, f"optimizer {i} saw a gradient of {seen[0]}, expected {3.0 * moves}")


@check(2, overflows=st.tuples(st.booleans(), st.booleans(), st.booleans()))
def optimizers_of_one_loss_see_one_scale(t: Trial, overflows: tuple[bool, bool, bool]) -> None:
    """The scale stands from scale() to update(): each optimizer's gradients are divided by what the loss had."""
    _backward(t, 1, overflows)
    for bench in t.benches:
        t.log_event("step")
        t.scaler.step(bench.optimizer)
    skips = [any(overflows)] * 3 if t.traits.skips == "all" else overflows
    t.scaler.update()
    _require_true_steps(t, [not skip for skip in skips])


@check(2, overflows=st.booleans(), unscales=st.booleans())
def an_update_between_two_steps_divides_nothing_wrong(t: Trial, overflows: bool, unscales: bool) -> None:
    """After an update() between two steps of one loss, the second divides by what the loss had, or is refused."""
    _backward(t, 1, (overflows, False))
    first, second = (bench.optimizer for bench in t.benches)
    t.scaler.step(first)
    t.scaler.update()
    t.log_event("step, update" + ", unscale_" * unscales + ", step of the other optimizer")
    calls = [partial(t.scaler.step, second), t.scaler.update]
    if unscales and t.has("unscale_"):
        calls.insert(0, partial(t.scaler.unscale_, second))
    refused = any(isinstance(outcome(call), Refusal) for call in calls)
    _require_true_steps(t, [not overflows, not refused])


@check(2, needs="refusals")
def optimizers_are_told_apart(t: Trial) -> None:
    """An optimizer that takes the place of a deleted one is another optimizer, although Python gives it the same id."""
    t.start()
    t.loss_scale()
    for _ in range(ROUNDS):
        t.log_event("step of a new optimizer, which is then deleted")
        param = torch.nn.Parameter(torch.ones(2))
        param.grad = torch.ones(2)
        optimizer = torch.optim.SGD([param], lr=0.125)
        got = outcome(partial(t.scaler.step, optimizer))
        t.require(not isinstance(got, Refusal), f"the step of a new optimizer gave {got}")
        del optimizer
