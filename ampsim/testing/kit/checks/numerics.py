"""Level 5: float32 effects on scales and gradients: subnormals, the largest number, inf, NaN, dtypes, fused kernels."""

import math
from typing import Any

import torch
from hypothesis import strategies as st

from ampsim.testing.check import CHECKS_VERSION
from ampsim.testing.kit.check import check
from ampsim.testing.kit.expected import backed_off
from ampsim.testing.kit.strategies import BAD, histories

DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
MIXED = (torch.float32, torch.bfloat16, torch.float64)
LARGEST = 3.4028234e38  # of float32
SIZES = st.sampled_from([1.0, -3.0, 1e4, 1e-3, 2.0**-149, 1e38, -LARGEST])  # of scaled gradients


@check(
    5,
    issue="pytorch/pytorch#95781",
    needs="gradients steps",
    scale=st.sampled_from([2.0**16, 1.0, 1700.0, 2.0**127]),
    size=SIZES,
    kernel=st.booleans(),
    bad=st.sampled_from([None, *BAD]),
)
def no_step_on_nonfinite_gradients(make, applied, scale, size, kernel, bad):
    """At scales of at least 1, no optimizer steps with an unscaled gradient that is inf or NaN."""
    scaler = make(init_scale=scale, backoff_factor=2.0**-16)
    moved = applied(scaler, [size, size, size if bad is None else bad], kernel)
    assert all(map(math.isfinite, moved)), "stepped with a non-finite unscaled gradient"
    assert bad is None or not any(moved), f"a step with a gradient of {bad} was not skipped"


@check(
    5,
    issue="pytorch/pytorch#96755",
    needs="gradients steps",
    scale=st.sampled_from([2.0**-16, 2.0**-64]),
    size=SIZES,
    kernel=st.booleans(),
)
def no_nonfinite_step_below_scale_one(falls, applied, scale, size, kernel):
    """At scales below 1, no optimizer steps with a gradient that unscaling turns into inf."""
    assert all(map(math.isfinite, applied(falls(scale), [size] * 3, kernel))), (
        "stepped with a non-finite gradient"
    )


@check(
    5,
    issue="pytorch/pytorch#99640",
    needs="gradients steps",
    scale=st.sampled_from([2.0**-128, 2.0**-144, 0.0]),
    kernel=st.booleans(),
)
def no_nonfinite_step_at_subnormal_scale(falls, applied, scale, kernel):
    """A finite step leaves finite parameters after any number of overflows, although 1/S is inf for S <= 2^-128."""
    assert all(map(math.isfinite, applied(falls(scale), [2.0**-149] * 3, kernel))), (
        "stepped with a non-finite gradient"
    )


@check(
    5,
    bad=st.lists(st.sampled_from(BAD), min_size=1, max_size=2),
    dtypes=st.just(MIXED) | DTYPES.map(lambda dtype: (dtype,)),
    which=st.just([2])
    | st.lists(st.sampled_from([0, 1, 2, 3, 5]), min_size=1, max_size=3, unique=True),
    where=st.sampled_from([1.0, 0.0, 0.5, 0.33, None]),
    kernel=st.booleans(),
    after=backed_off,
)
def nonfinite_gradients_are_found(make, loss_scale, bad, dtypes, which, where, kernel, after):
    """inf, -inf, and NaN are found in any element of any gradient of any dtype, and count as one overflow."""
    shapes = [(37,), (3, 2), (255, 257), (), (2,), (2,)]  # 37: a vector loop and its remainder
    params = [
        torch.nn.Parameter(torch.ones(each, dtype=dtypes[i % len(dtypes)]))
        for i, each in enumerate(shapes)
    ]
    optimizer = (torch.optim.AdamW if kernel else torch.optim.SGD)(params, lr=0.125, fused=kernel)
    scaler = make(growth_interval=3)
    loss_scale(scaler)
    for param in params:
        param.grad = torch.ones_like(param)
    for grad in (params[each].grad.view(-1) for each in which):
        first = 0 if where is None else int(where * (len(grad) - 1))
        grad[first : None if where is None else first + 1] = bad[0]
        grad[-1 - first] = bad[-1] if len(bad) > 1 else grad[-1 - first]
    scaler.step(optimizer)
    assert all((param == 1.0).all() for param in params), "the optimizer stepped"
    scaler.update()
    assert after in (None, loss_scale(scaler)), (
        f"the scale is {loss_scale(scaler)}, expected {after}"
    )


@check(5, bad=st.sampled_from([None, *BAD]), which=st.integers(0, 1), after=backed_off)
def sparse_gradients_are_checked(make, loss_scale, bad, which, after):
    """An inf or NaN in a sparse gradient skips the step and is an overflow, unless sparse gradients raise."""
    params, expected = [torch.nn.Parameter(torch.ones(4, 2)) for _ in range(2)], torch.ones(4, 2)
    scaler, optimizer = make(growth_interval=3), torch.optim.SGD(params, lr=1.0)
    scale = loss_scale(scaler)
    for i, param in enumerate(params):
        values = torch.full((2, 2), 3 * scale)
        if i == which and bad is not None:
            values[1, 1] = bad
        param.grad = torch.sparse_coo_tensor(
            torch.tensor([[3, 1]]), values, (4, 2), check_invariants=True
        )
    try:
        scaler.step(optimizer)
    except Exception:  # a scaler may raise for sparse gradients
        bad = after = None
    else:
        if bad is None:
            expected[[1, 3]] = -2.0
    assert all(torch.equal(param, expected) for param in params), f"parameters became {params}"
    if bad is not None:
        scaler.update()
        assert after in (None, loss_scale(scaler)), (
            f"the scale is {loss_scale(scaler)}, expected {after}"
        )


@check(
    5,
    found=[
        {"scale": 0, "size": -125, "dtype": torch.float32, "transposed": False}
    ],  # the largest power of two at which it is subnormal
    scale=st.integers(0, 100),
    size=st.integers(-140, 20),
    dtype=DTYPES,
    transposed=st.booleans(),
)
def unscale_by_power_of_two_is_exact(make, loss_scale, scale, size, dtype, transposed):
    """Unscaling by a power of two is exact, also for subnormal and transposed gradients."""
    scaler, param = make(init_scale=2.0**scale), torch.nn.Parameter(torch.ones(2, 3, dtype=dtype))
    true = (1 + torch.arange(6.0).reshape(2, 3)).to(dtype) / 3 * 2.0**size
    memory = torch.empty(3, 2, dtype=dtype).t() if transposed else torch.empty(2, 3, dtype=dtype)
    param.grad = memory.copy_(true * loss_scale(scaler))
    scaler.step(torch.optim.SGD([param], lr=0.0))
    worst = (param.grad - true).abs().argmax()
    seen, due = param.grad.flatten()[worst].item(), true.flatten()[worst].item()
    assert torch.equal(param.grad, true), (
        f"element {int(worst)} is unscaled to {seen!r}, expected {due!r}"
    )


@check(
    5,
    issue="redai-studio/Relax#44",
    needs="gradients",
    scale=st.sampled_from([1700.0, 2.0**16, 0.1]),
    found_inf=histories(longest=6),
    unscales=st.booleans(),
)
def unscale_uses_scale_of_loss(make, iterate, loss_scale, applied, scale, found_inf, unscales):
    """Each gradient is divided once, by the scale of its loss: the optimizer gets the true gradient, up to rounding."""
    scaler = make(init_scale=scale, growth_interval=2)
    for overflows in found_inf:
        iterate(scaler, overflows)
    seen = applied(scaler, [3.0 * loss_scale(scaler)] * 2, unscales=unscales)
    assert all(math.isclose(each, 3.0, rel_tol=1e-5) for each in seen), (
        f"the optimizer saw {seen}, expected [3.0, 3.0]"
    )


@check(
    5,
    issue="redai-studio/Relax#44",
    scale=st.sampled_from([1700.0, 2.0**16, 0.1]),
    found_inf=histories(longest=6),
    true=st.sampled_from([3.0, 0.0, -1e-30, 1e30]),
    unscales=st.booleans(),
    loads=st.booleans(),
)
def gradients_are_unscaled_on_their_device(
    make, iterate, loss_scale, delay, scale, found_inf, true, unscales, loads
):
    """Each gradient is divided once, on its own device, also right after a state dict is loaded.

    The optimizer gets the true gradient, large or 0, up to rounding, and no overflow is reported.
    """
    scaler, weight = make(init_scale=scale, growth_interval=2), torch.nn.Parameter(torch.zeros(3))
    for overflows in found_inf:
        iterate(scaler, overflows)
    if loads:
        scaler, saved = make(init_scale=512.0, growth_interval=2), scaler
        iterate(scaler, False)
        scaler.load_state_dict(saved.state_dict())
    optimizer, before = torch.optim.SGD([weight], lr=1.0), loss_scale(scaler)
    scaler.scale((true * weight).sum()).backward()
    gradient: Any = weight.grad
    if unscales:
        scaler.unscale_(optimizer)
        seen = gradient[0].item()
        assert math.isclose(seen, true, rel_tol=1e-5), (
            f"unscale_() left a gradient of {seen!r}, expected {true}"
        )
    scaler.step(optimizer)
    seen = -weight[0].item()
    assert math.isclose(seen, true, rel_tol=1e-5), (
        f"the optimizer saw a gradient of {seen!r}, expected {true}"
    )
    scaler.update()
    after = loss_scale(scaler)
    assert after >= before or delay, f"a gradient of {true} led the scale from {before} to {after}"


@check(
    5,
    issue="pytorch/pytorch#95847",
    needs="fused",
    found_inf=st.lists(st.booleans(), min_size=1, max_size=6),
    unscales=st.just(True),
)
def fused_matches_unfused(make, loss_scale, found_inf, unscales):
    """A fused optimizer skips and updates parameters like an unfused one, with or without unscale_()."""
    one, two = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    fused, plain = (
        torch.optim.AdamW([one], lr=0.125, fused=True),
        torch.optim.AdamW([two], lr=0.125, foreach=False),
    )
    scaler = make(growth_interval=3)
    for number, overflows in enumerate(found_inf):
        scale = loss_scale(scaler)
        for param, optimizer in ((one, fused), (two, plain)):
            param.grad = torch.tensor([scale, scale, math.inf if overflows else scale])
            if unscales and number % 2:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
        scaler.update()
        assert torch.allclose(one, two, rtol=1e-5), f"fused {one.tolist()}, unfused {two.tolist()}"


@check(5, needs="fused strided", wide=st.booleans(), unscales=st.booleans())
def fused_step_respects_strides(make, loss_scale, wide, unscales):
    """A fused step is correct, or raises, if a gradient and its parameter have different strides.

    A scaler that does not pass its scale to the kernel passes this check.
    """
    scaler, param = make(growth_interval=3), torch.nn.Parameter(torch.ones(2, 3))
    optimizer, true = torch.optim.SGD([param], lr=1.0, fused=True), torch.arange(6.0).reshape(2, 3)
    handed: list[Any] = []
    optimizer.register_step_pre_hook(
        lambda *_: handed.append(getattr(optimizer, "grad_scale", None))
    )
    memory = torch.zeros(2, 6)[:, ::2] if wide else torch.zeros(3, 2).t()
    param.grad = memory.copy_(true * loss_scale(scaler))
    if unscales:
        scaler.unscale_(optimizer)
    try:
        scaler.step(optimizer)
    except Exception:  # a scaler may raise
        true = torch.zeros(2, 3)
    moved = (1.0 - param).tolist()
    assert handed == [None] or torch.equal(param, 1.0 - true), (
        f"parameters moved by {moved}, expected {true.tolist()}"
    )


@check(5, since=CHECKS_VERSION, size=st.sampled_from([1.0, 0.0, 2.0**60, 3e38]))
def finite_gradients_never_skip(make, iterate, applied, delay, size):
    """Finite gradients of any size are no overflow: the scale does not fall."""
    scaler = make(init_scale=1024.0)
    applied(scaler, [size] * 3)
    scales = [iterate(scaler, False) for _ in range(1 + delay)]
    assert min(scales) >= 1024.0, f"three gradients of {size!r} led the scale to {min(scales)}"
