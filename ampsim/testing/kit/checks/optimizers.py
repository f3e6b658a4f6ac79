"""Level 2: several optimizers, groups and micro-batches; one scale for all of them."""

import math

import torch
from hypothesis import strategies as st

from ampsim.testing.kit.check import check
from ampsim.testing.kit.expected import backed_off
from ampsim.testing.kit.strategies import BAD, FLAGS


@check(2, issue="NVIDIA/apex#179", needs="optimizers", found_inf=FLAGS)
def skip_is_per_optimizer(make, iterate_all, params, skips, found_inf):
    """An overflow skips only the optimizer that has it, or every optimizer, as `Traits.skips` declares."""
    scaler = make(growth_interval=3)
    for overflows in found_inf:
        before = [param.tolist() for param in params]
        iterate_all(scaler, overflows)
        for param, was, own in zip(params, before, overflows):
            overflow, stepped = any(overflows) if skips == "all" else own, param.tolist() != was
            assert stepped != overflow, f"found_inf={overflow}, stepped={stepped}"


@check(
    2,
    group=st.integers(0, 2),
    bad=st.sampled_from([None, *BAD]),
    late=st.sampled_from(["", "add_param_group", "unfrozen"]),
)
def overflow_in_any_group_skips(make, loss_scale, group, bad, late):
    """Gradients of every parameter group, also of one added later, are unscaled and checked for inf and NaN."""
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((3,), (2,), ())]
    unused = [torch.nn.Parameter(torch.zeros(1)) for _ in params]  # no gradient reaches it
    groups, scaler = [{"params": [*each]} for each in zip(unused, params)], make(growth_interval=3)
    optimizer = torch.optim.SGD(groups[:1] if late == "add_param_group" else groups, lr=1.0)
    if late:
        params[0].grad = torch.zeros(3) * loss_scale(scaler)
        scaler.step(optimizer)
        scaler.update()
        for each in groups[len(optimizer.param_groups) :]:
            optimizer.add_param_group(each)
    for param in params:
        param.grad = torch.full_like(param, 3 * loss_scale(scaler))
    if bad is not None:
        params[group].grad.view(-1)[0] = bad
    scaler.step(optimizer)
    true, seen = (
        3.0 if bad is None else 0.0,
        [-param.sum().item() / param.numel() for param in params],
    )
    assert seen == [true] * 3, f"the optimizer stepped by {seen}, expected {true}"


@check(2, issue="huggingface/accelerate#641", micro=st.lists(st.booleans(), min_size=2, max_size=4))
def overflow_in_any_micro_batch_skips(make, param, optimizer, micro):
    """Gradients accumulate over micro-batches at one scale, and an overflow in any of them skips the step."""
    scaler = make(growth_interval=3)
    for overflows in micro:
        scaler.scale((param * (math.inf if overflows else 1.0)).sum()).backward()
    scaler.step(optimizer)
    expected = 1.0 if any(micro) else 1.0 - 0.125 * len(micro)
    assert param.tolist() == [expected] * 3, (
        f"parameters became {param.tolist()}, expected {expected}"
    )
    scaler.update()


@check(
    2,
    needs="optimizers unscale_",
    steps=st.tuples(st.booleans(), st.booleans()),
    which=st.integers(0, 1),
    after=backed_off,
)
def unscaled_overflow_backs_off(make, loss_scale, params, optimizers, steps, which, after):
    """An overflow that unscale_() finds makes update() back off, whether or not the optimizer is stepped."""
    scaler = make(growth_interval=3)
    scale = loss_scale(scaler)
    for i, stepped in enumerate(steps):
        params[i].grad = torch.tensor([scale, scale, math.inf if i == which else scale])
        scaler.unscale_(optimizers[i])
        if stepped:
            scaler.step(optimizers[i])
    scaler.update()
    assert after in (None, loss_scale(scaler)), (
        f"the scale is {loss_scale(scaler)}, expected {after}"
    )


@check(2, needs="optimizers", overflows=st.tuples(st.booleans(), st.booleans(), st.booleans()))
def optimizers_share_scale_of_loss(make, loss_scale, skips, delay, overflows):
    """The scale does not change between scale() and update(): all optimizers divide by the scale of the loss."""
    scaler, params = (
        make(init_scale=1024.0, growth_interval=1),
        [torch.nn.Parameter(torch.ones(3)) for _ in range(3)],
    )
    gradients = [math.inf if each else 3.0 for each in overflows]
    scaler.scale(sum((param * each).sum() for param, each in zip(params, gradients))).backward()
    optimizers = [torch.optim.SGD([param], lr=1.0) for param in params]
    for optimizer in optimizers:
        scaler.step(optimizer)
        assert delay or loss_scale(scaler) == 1024.0, (
            f"step() changed the scale to {loss_scale(scaler)}"
        )
    scaler.update()
    for i, (param, own) in enumerate(zip(params, overflows)):
        seen, true = (
            (1.0 - param)[0].item(),
            0.0 if own or (skips == "all" and any(overflows)) else 3.0,
        )
        assert param.tolist() == [1.0 - true] * 3, (
            f"optimizer {i} saw a gradient of {seen}, expected {true}"
        )


@check(2, needs="optimizers refusals", overflows=st.booleans(), unscales=st.booleans())
def update_between_steps_keeps_gradients_correct(make, overflows, unscales):
    """After an update() between two steps of one loss, the second step divides by the scale of the loss, or raises."""
    scaler, one, two = (
        make(init_scale=1024.0, growth_interval=1),
        *(torch.nn.Parameter(torch.ones(3)) for _ in range(2)),
    )
    first, second = (torch.optim.SGD([param], lr=1.0) for param in (one, two))
    scaler.scale((one * (math.inf if overflows else 3.0)).sum() + (two * 3.0).sum()).backward()
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
    assert two.tolist() == [1.0 - true] * 3, (
        f"optimizer 1 saw a gradient of {seen}, expected {true}"
    )
    assert one.tolist() == [1.0 if overflows else -2.0] * 3, (
        f"the first parameters became {one.tolist()}"
    )


@check(2, needs="optimizers refusals")
def optimizers_with_reused_id_are_distinct(make, loss_scale):
    """A new optimizer with the id() of a deleted one is treated as a new optimizer."""
    scaler, raised = make(growth_interval=3), []
    loss_scale(scaler)
    for _ in range(
        64
    ):  # many get the id of the one before, and which ones differs from process to process
        param = torch.nn.Parameter(torch.ones(2))
        param.grad = torch.ones(2)
        try:
            scaler.step(torch.optim.SGD([param], lr=0.125))
        except Exception as error:
            raised.append(repr(error))
    assert not raised, f"the step of a new optimizer raised {raised[0]}"
