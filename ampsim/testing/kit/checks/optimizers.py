"""Level 2: several optimizers, groups and micro-batches; one scale for all of them."""

import math
from dataclasses import replace

import torch
from hypothesis import strategies as st

from ampsim.core import laws
from ampsim.testing.kit.check import check
from ampsim.testing.kit.trial import RULE, Bench, Trial, sgd

CLEAN = (False, False, False)
FLAGS = st.lists(  # which of three optimizers overflow; often none, so that the scale grows
    st.just(CLEAN) | st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=8
)
ROUNDS = 64  # the second or third optimizer mostly gets the id of the one before
Flags = list[tuple[bool, bool, bool]]


@check(2, issue="NVIDIA-NeMo/Megatron-Bridge#5591", flags=FLAGS)
def any_optimizer_overflow_backs_off(t: Trial, flags: Flags) -> None:
    """An overflow in one or more optimizers is one overflow of the scaler; a clean step of all is one clean step."""
    t.start(RULE, Bench(), Bench(), Bench())
    for each in flags:
        t.follow(*each)
    t.require_scale(t.loss_scale())


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
        t.scaler.step(optimizer)
        del optimizer
