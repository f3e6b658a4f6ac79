"""Level 5: float32 effects on scales and gradients: subnormals, the largest number, inf, NaN,
dtypes, fused kernels.
"""

import math
from contextlib import suppress
from itertools import cycle
from typing import Any

import torch
from hypothesis import strategies as st

from ampsim.testing.scaler_checks.adapter import Flags, ScalerAdapter, gradient, sgd
from ampsim.testing.scaler_checks.check import check
from ampsim.testing.scaler_checks.strategies import NONFINITE, overflow_sequences

DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
MIXED = (torch.float32, torch.bfloat16, torch.float64)
LARGEST = 3.4028234e38  # of float32
SIZES = st.sampled_from(
    [1.0, -3.0, 1e4, 1e-3, 2.0**-149, 1e38, -LARGEST]
)  # of scaled gradients

# ------------------------------------------------------------------------------------ the scale


@check(5, issue="pytorch/pytorch#157436", overflows=st.integers(1, 12))
def scale_is_never_subnormal(case: ScalerAdapter, overflows: int) -> None:
    """After any number of overflows the scale is positive and normal: at least 2^-126."""
    scaler = case.make(init_scale=1.0, backoff_factor=2.0**-16)
    scales = case.run(scaler, [True] * overflows * case.overflows_per_binade)
    assert min(scales) >= 2.0**-126, f"the scale fell to {min(scales)}"


@check(
    5,
    issue="google/flax#2547",
    needs="growth",
    found=[  # the shortest ways to 0 and to inf
        {"overflows": 10, "growths": 0},
        {"overflows": 0, "growths": 7},
    ],
    overflows=st.integers(0, 12),
    growths=st.integers(0, 12),
)
def scale_recovers_after_overflows(
    case: ScalerAdapter, overflows: int, growths: int
) -> None:
    """After any growths and overflows, finite steps raise the scale, and an overflow lowers it."""
    low = case.traits.min_scale or 0.0
    high = case.traits.max_scale or 2.0**112
    factors = {"growth_factor": 2.0**16, "backoff_factor": 2.0**-16}
    scaler = case.make(init_scale=1.0, growth_interval=1, **factors)
    backoff = [True] * case.traits.hysteresis
    repeats = case.overflows_per_binade
    finite = [False] * growths * repeats
    case.run(scaler, finite + backoff * overflows * repeats)
    before, *_, after = case.run(scaler, [False] * 3)
    changed = f"changed the scale from {before} to {after}"
    assert after > before or before >= high, f"finite steps {changed}"
    before, *_, after = case.run(scaler, backoff)
    changed = f"changed the scale from {before} to {after}"
    assert after < before or before <= low, f"an overflow {changed}"


@check(
    5,
    found=[
        {"scale": 2.0**14, "found_inf": [False] * 3}
    ],  # past the largest number of float16
    scale=st.sampled_from([1.0, 2.0**14, 2.0**100]),
    found_inf=overflow_sequences(longest=8),
)
def scale_stays_power_of_two(
    case: ScalerAdapter, scale: float, found_inf: Flags
) -> None:
    """With factors 2 and 1/2, a power-of-two scale stays a power of two, so scaling and unscaling
    are exact.
    """
    scaler = case.make(init_scale=scale, growth_interval=1)
    for overflows in found_inf:
        case.iterate(scaler, overflows)
        now = case.loss_scale(scaler)
        is_power = now in (0.0, math.inf) or math.frexp(now)[0] == 0.5
        assert is_power, f"the scale is {now!r}"


@check(5, needs="gives_up")
def minimum_scale_error_repeats(case: ScalerAdapter) -> None:
    """A scaler that raises at its minimum scale raises the same exception at the next update."""
    scaler = case.make(init_scale=2.0, growth_interval=2)
    raised = list[str]()
    for _ in range(200):
        try:
            case.iterate(scaler, True)
        except Exception as error:
            raised.append(type(error).__name__)
    kinds = list(dict.fromkeys(raised))
    assert len(kinds) < 2, f"it raised {', then '.join(kinds)}"


# -------------------------------------------------------------------------- inf, NaN, and steps


@check(
    5,
    issue="pytorch/pytorch#95781",
    needs="gradients steps",
    scale=st.sampled_from([2.0**16, 1.0, 1700.0, 2.0**127]),
    size=SIZES,
    fused=st.booleans(),
    bad=st.sampled_from([None, *NONFINITE]),
)
def no_step_on_nonfinite_gradients(
    case: ScalerAdapter, scale: float, size: float, fused: bool, bad: float | None
) -> None:
    """At scales of at least 1, no optimizer steps with an unscaled gradient that is inf or NaN."""
    scaler = case.make(init_scale=scale, backoff_factor=2.0**-16)
    moved = case.applied(scaler, [size, size, size if bad is None else bad], fused)
    assert all(map(math.isfinite, moved)), "stepped with a non-finite unscaled gradient"
    assert bad is None or not any(moved), (
        f"a step with a gradient of {bad} was not skipped"
    )


@check(
    5,
    issue="pytorch/pytorch#96755",
    needs="gradients steps",
    found=[{"scale": 2.0**-144, "size": 2.0**-149, "fused": False}],  # 1/S is inf
    scale=st.sampled_from([2.0**-16, 2.0**-64, 2.0**-128, 2.0**-144, 0.0]),
    size=SIZES,
    fused=st.booleans(),
)
def no_nonfinite_step_below_scale_one(
    case: ScalerAdapter, scale: float, size: float, fused: bool
) -> None:
    """At scales below 1, or after overflows at 0, no optimizer steps with a gradient that unscaling
    turns into inf.
    """
    moved = case.applied(case.fallen_to(scale), [size] * 3, fused)
    assert all(map(math.isfinite, moved)), "stepped with a non-finite gradient"


@check(
    5,
    issue="pytorch/pytorch#97415",
    needs="unscale_ gradients",
    bad=st.sampled_from(NONFINITE),
    fused=st.booleans(),
)
def no_nonfinite_step_after_unscale(
    case: ScalerAdapter, bad: float, fused: bool
) -> None:
    """An inf or NaN that the loop writes into a gradient after unscale_() is not stepped with, or
    step() raises.
    """
    scaler = case.make()
    (param, optimizer) = sgd(3, fused=fused)
    param.grad = torch.full((3,), case.loss_scale(scaler))
    scaler.unscale_(optimizer)
    param.grad[1] = bad  # as a division by a count of 0 tokens does
    with suppress(Exception):  # a scaler may raise
        scaler.step(optimizer)
    text = f"stepped with a gradient of {bad}, written after unscale_()"
    assert param.isfinite().all(), text


@check(
    5,
    bad=st.lists(st.sampled_from(NONFINITE), min_size=1, max_size=2),
    dtypes=st.just(MIXED) | DTYPES.map(lambda dtype: (dtype,)),
    which=st.just([2])
    | st.lists(st.sampled_from([0, 1, 2, 3, 5]), min_size=1, max_size=3, unique=True),
    where=st.sampled_from([1.0, 0.0, 0.5, 0.33, None]),
    fused=st.booleans(),
)
def nonfinite_gradients_are_found(
    case: ScalerAdapter,
    bad: list[float],
    dtypes: tuple[torch.dtype, ...],
    which: list[int],
    where: float | None,
    fused: bool,
) -> None:
    """inf, -inf, and NaN are found in any element of any group and dtype, and count as one
    overflow.
    """
    # 37: a vector loop and its remainder
    shapes = [(37,), (3, 2), (255, 257), (), (2,), (2,)]
    params: list[Any] = []
    for shape, dtype in zip(shapes, cycle(dtypes)):
        params.append(torch.nn.Parameter(torch.ones(shape, dtype=dtype)))
    groups = [{"params": [param]} for param in params]
    kind = torch.optim.AdamW if fused else torch.optim.SGD
    optimizer = kind(groups, lr=0.125, fused=fused)
    scaler = case.make(growth_interval=3)
    due = case.backed_off_scale()
    case.loss_scale(scaler)
    for i, param in enumerate(params):
        param.grad = torch.ones_like(param)
        if i in which:
            grad = param.grad.view(-1)
            first = int((where or 0.0) * (len(grad) - 1))
            grad[first : None if where is None else first + 1] = bad[0]
            if len(bad) > 1:
                grad[-1 - first] = bad[-1]
    scaler.step(optimizer)
    assert all((param == 1.0).all() for param in params), "the optimizer stepped"
    case.assert_backs_off(scaler, due)


@check(5, bad=st.sampled_from([None, *NONFINITE]), which=st.integers(0, 1))
def sparse_gradients_are_checked(
    case: ScalerAdapter, bad: float | None, which: int
) -> None:
    """An inf or NaN in a sparse gradient skips the step and is an overflow, unless sparse gradients
    raise.
    """
    params = [torch.nn.Parameter(torch.ones(4, 2)) for _ in range(2)]
    scaler = case.make(growth_interval=3)
    optimizer = torch.optim.SGD(params, lr=1.0)
    due = case.backed_off_scale()
    scale = case.loss_scale(scaler)
    expected = torch.ones(4, 2)
    rows = torch.tensor([[3, 1]])
    for i, param in enumerate(params):
        values = torch.full((2, 2), 3 * scale)
        if i == which and bad is not None:
            values[1, 1] = bad
        grad = torch.sparse_coo_tensor(rows, values, (4, 2), check_invariants=True)
        param.grad = grad
    try:
        scaler.step(optimizer)
    except Exception:  # a scaler may raise for sparse gradients
        bad = None
    else:
        if bad is None:
            expected[[1, 3]] = -2.0
    same = all(torch.equal(param, expected) for param in params)
    assert same, f"parameters became {[param.tolist() for param in params]}"
    if bad is not None:
        case.assert_backs_off(scaler, due)


@check(5, size=st.sampled_from([1.0, 0.0, 2.0**60, 3e38]))
def finite_gradients_never_skip(case: ScalerAdapter, size: float) -> None:
    """Finite gradients of any size are no overflow: the scale does not fall."""
    scaler = case.make(init_scale=1024.0)
    case.applied(scaler, [size] * 3)
    low = min(case.iterate_each(scaler, [False] * (1 + case.traits.delay)))
    assert low >= 1024.0, f"three gradients of {size!r} led the scale to {low}"


# ------------------------------------------------------------------------------------- division


@check(
    5,
    found=[  # the largest power of two at which it is subnormal
        {"scale": 0, "size": -125, "dtype": torch.float32, "transposed": False}
    ],
    scale=st.integers(0, 100),
    size=st.integers(-140, 20),
    dtype=DTYPES,
    transposed=st.booleans(),
)
def unscale_by_power_of_two_is_exact(
    case: ScalerAdapter, scale: int, size: int, dtype: torch.dtype, transposed: bool
) -> None:
    """Unscaling by a power of two is exact, also for subnormal and transposed gradients."""
    scaler = case.make(init_scale=2.0**scale)
    param = torch.nn.Parameter(torch.ones(2, 3, dtype=dtype))
    counts = 1 + torch.arange(6.0).reshape(2, 3)
    true = counts.to(dtype) / 3 * 2.0**size
    memory = torch.empty_like(true)
    if transposed:
        memory = torch.empty(3, 2, dtype=dtype).t()
    param.grad = memory.copy_(true * case.loss_scale(scaler))
    scaler.step(torch.optim.SGD([param], lr=0.0))
    worst = int((param.grad - true).abs().argmax())
    seen = param.grad.flatten()[worst].item()
    due = true.flatten()[worst].item()
    same = torch.equal(param.grad, true)
    assert same, f"element {worst} is unscaled to {seen!r}, expected {due!r}"


@check(
    5,
    issue="redai-studio/Relax#44",
    needs="gradients",
    scale=st.sampled_from([1700.0, 2.0**16, 0.1]),
    found_inf=overflow_sequences(longest=6),
    unscales=st.booleans(),
)
def unscale_uses_scale_of_loss(
    case: ScalerAdapter, scale: float, found_inf: Flags, unscales: bool
) -> None:
    """Each gradient is divided once, by the scale of its loss: the optimizer gets the true
    gradient, up to rounding.
    """
    scaler = case.make(init_scale=scale, growth_interval=2)
    case.iterate_each(scaler, found_inf)
    seen = case.applied(scaler, [3.0 * case.loss_scale(scaler)] * 2, unscales=unscales)
    same = all(math.isclose(each, 3.0, rel_tol=1e-5) for each in seen)
    assert same, f"the optimizer saw {seen}, expected [3.0, 3.0]"


@check(
    5,
    issue="redai-studio/Relax#44",
    scale=st.sampled_from([1700.0, 2.0**16, 0.1]),
    true=st.sampled_from([3.0, 0.0, -1e-30, 1e30]),
    unscales=st.booleans(),
    loads=st.booleans(),
)
def gradients_are_unscaled_on_their_device(
    case: ScalerAdapter, scale: float, true: float, unscales: bool, loads: bool
) -> None:
    """Each gradient is divided once, on its own device, also right after a state dict is loaded.

    The optimizer gets the true gradient, large or 0, up to rounding.
    """
    scaler = case.make(init_scale=scale, growth_interval=2)
    weight, optimizer = sgd(3)
    if loads:
        scaler, saved = case.make(init_scale=512.0, growth_interval=2), scaler
        case.iterate(scaler, False)
        scaler.load_state_dict(saved.state_dict())
    scaler.scale((true * weight).sum()).backward()
    grad = weight.grad  # which other references see too
    if unscales:
        scaler.unscale_(optimizer)
        seen = grad[0].item()
        same = math.isclose(seen, true, rel_tol=1e-5)
        assert same, f"unscale_() left a gradient of {seen!r}, expected {true}"
    scaler.step(optimizer)
    seen = -weight[0].item()
    same = math.isclose(seen, true, rel_tol=1e-5)
    assert same, f"the optimizer saw a gradient of {seen!r}, expected {true}"


# --------------------------------------------------------------------------------- fused kernels


@check(
    5,
    issue="pytorch/pytorch#95847",
    needs="fused",
    found_inf=st.lists(st.booleans(), min_size=1, max_size=6),
    unscales=st.just(True),
)
def fused_matches_unfused(
    case: ScalerAdapter, found_inf: Flags, unscales: bool
) -> None:
    """A fused optimizer skips and updates parameters like an unfused one, with or without
    unscale_().
    """
    one = torch.nn.Parameter(torch.ones(3))
    two = torch.nn.Parameter(torch.ones(3))
    fused = torch.optim.AdamW([one], lr=0.125, fused=True)
    plain = torch.optim.AdamW([two], lr=0.125, foreach=False)
    scaler = case.make(growth_interval=3)
    for number, overflows in enumerate(found_inf):
        scale = case.loss_scale(scaler)
        for param, optimizer in ((one, fused), (two, plain)):
            param.grad = gradient(scale, overflows)
            if unscales and number % 2:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
        scaler.update()
        same = torch.allclose(one, two, rtol=1e-5)
        assert same, f"fused {one.tolist()}, unfused {two.tolist()}"


@check(5, needs="fused strided", wide=st.booleans(), unscales=st.booleans())
def fused_step_respects_strides(
    case: ScalerAdapter, wide: bool, unscales: bool
) -> None:
    """A fused step is correct, or raises, if a gradient and its parameter have different strides.

    A scaler that does not pass its scale to the kernel passes this check.
    """
    scaler = case.make(growth_interval=3)
    param, optimizer = sgd(2, 3, value=1.0, fused=True)
    true = torch.arange(6.0).reshape(2, 3)
    scales: list[Any] = []

    def note(*_: Any) -> None:
        scales.append(getattr(optimizer, "grad_scale", None))

    optimizer.register_step_pre_hook(note)
    memory = torch.zeros(3, 2).t()
    if wide:
        memory = torch.zeros(2, 6)[:, ::2]
    param.grad = memory.copy_(true * case.loss_scale(scaler))
    if unscales:
        scaler.unscale_(optimizer)
    try:
        scaler.step(optimizer)
    except Exception:  # a scaler may raise
        true = torch.zeros(2, 3)
    moved = (1.0 - param).tolist()
    same = scales == [None] or torch.equal(param, 1.0 - true)
    assert same, f"parameters moved by {moved}, expected {true.tolist()}"
