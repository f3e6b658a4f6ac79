"""Level 1: torch.amp.GradScaler's methods, their return values, and their errors."""

import math
from typing import Any

import torch
from hypothesis import strategies as st

from ampsim.core import refusals
from ampsim.core.refusals import Refusal
from ampsim.testing.scaler_checks.adapter import (
    Constants,
    Flags,
    ScalerAdapter,
    gradient,
    sgd,
)
from ampsim.testing.scaler_checks.check import check
from ampsim.testing.scaler_checks.strategies import overflow_sequences, rules
from ampsim.testing.scaler_checks.suggest_traits import DECLARED

FEW = overflow_sequences(longest=4)


@check(1)
def missing_features_are_declared(case: Any) -> None:
    """`Traits.unsupported` declares each optional feature that the scaler does not have."""
    lacks = [f"{name}: {what}" for name, what in case.subject.missing.items()]
    missing = "; ".join(lacks)
    assert not missing, f"not supported and not declared: {missing}"


assert missing_features_are_declared.name == DECLARED


# ---------------------------------------------------------------------------- values and returns


@check(
    1,
    rule=rules(growth=False),
    dtype=st.sampled_from(
        [torch.float32, torch.float64, torch.bfloat16, torch.float16]
    ),
    shape=st.sampled_from([(), (3,)]),
)
def loss_is_multiplied_by_scale(
    case: ScalerAdapter,
    rule: Constants,
    dtype: torch.dtype,
    shape: tuple[int, ...],
) -> None:
    """scale() returns loss times scale in the same container and does not change the loss.

    A drop-in uses torch's type promotion exactly. Others may keep the dtype of the loss, convert it
    to float32, or raise for a container.
    """
    scaler = case.make(**rule)
    drop_in = case.traits.drop_in
    leaf = torch.full(shape, 0.3, dtype=dtype, requires_grad=True)
    loss = leaf * 1.0
    expected = loss.detach() * torch.tensor(scaler.get_scale())
    scaled = [scaler.scale(loss)]
    try:
        both = scaler.scale([loss, (loss,)])
    except Exception:
        assert not drop_in, "scale() raised for a list of a loss and a tuple"
    else:
        first, inner = both
        assert (type(both), type(inner)) == (list, tuple), f"a list became {both!r}"
        scaled += [first, *inner]
    product = loss.detach().double() * scaler.get_scale()
    for got in scaled:
        same = got.dtype == expected.dtype and torch.equal(got, expected)
        if got.dtype in (dtype, torch.float32) and not drop_in:
            rounding = max(torch.finfo(got.dtype).eps, 2.0**-23)
            same = torch.allclose(got, product.to(got.dtype), rounding, 0.0)
        assert same, f"{leaf!r} became {got!r}, expected {expected!r}"
    assert torch.equal(loss, leaf), f"the loss itself became {loss!r}"


@check(1, rule=rules(growth=False), found_inf=overflow_sequences())
def scale_is_exact_float32(
    case: ScalerAdapter, rule: Constants, found_inf: Flags
) -> None:
    """The scale after each update is ``float32(float64(S) * factor)``, up to rounding; exactly for
    a drop-in.
    """
    scaler = case.make(**rule)
    rounding = 0.0 if case.traits.drop_in else 2.0**-18  # of 24 updates
    case.assert_scales(
        scaler, found_inf, case.expected_scales(found_inf, **rule), rounding
    )


@check(
    1,
    issue="pytorch/pytorch#67590",
    needs="skip_report",
    found_inf=overflow_sequences(longest=6),
    fused=st.booleans(),
)
def last_step_reports_skip(case: ScalerAdapter, found_inf: Flags, fused: bool) -> None:
    """After step(), ``last_step.skipped`` reports whether the optimizer was skipped, fused or not."""
    scaler = case.make(growth_interval=3)
    (param, optimizer) = sgd(3, fused=fused)
    for overflows in found_inf:
        param.grad = gradient(case.loss_scale(scaler), overflows)
        scaler.step(optimizer)
        scaler.update()
        assert hasattr(scaler, "last_step"), "the scaler has no last_step"
        skipped = scaler.last_step.skipped
        assert bool(skipped) == overflows, f"last_step.skipped is {skipped!r}"


@check(1, needs="step_value", overflows=st.booleans(), passes_arguments=st.booleans())
def step_returns_optimizer_result(
    case: ScalerAdapter, overflows: bool, passes_arguments: bool
) -> None:
    """step() returns the value of the optimizer's step, or None for a skip; it passes arguments on
    or raises.
    """

    class Returns(torch.optim.SGD):
        def step(self, factor: Any = 1.0, times: float = 1.0) -> float:  # type: ignore[override]
            super().step()
            return float(5.0 * factor * times)

    scaler = case.make(growth_interval=3)
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = Returns([param], lr=0.1)
    param.grad = gradient(case.loss_scale(scaler), overflows)
    if not passes_arguments:
        got = scaler.step(optimizer)
        expected = 5.0
    else:
        try:
            got = scaler.step(optimizer, 2.0, times=3.0)
            expected = 30.0
        except Exception:  # a scaler may take no arguments
            return
    due = None if overflows else expected
    assert got == due, f"step() returned {got!r}, expected {due!r}"


SETTINGS = {"growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 2}


@check(
    1,
    needs="setters",
    found_inf=overflow_sequences(longest=6),
    name=st.sampled_from([*SETTINGS]),
)
def setters_take_effect(case: ScalerAdapter, found_inf: Flags, name: str) -> None:
    """The getter returns the factor or interval that was set, and the next growth or backoff uses
    it.
    """
    scaler = case.make(growth_interval=1)
    value = SETTINGS[name]
    rounding = 0.0 if case.traits.drop_in else 2.0**-20  # of 6 updates
    constants: Constants = {"growth_interval": 1, name: value}
    expected = case.expected_scales(found_inf, **constants)
    getattr(scaler, f"set_{name}")(value)
    got = getattr(scaler, f"get_{name}")()
    is_set = got == value or case.traits.delay
    assert is_set, f"get_{name}() is {got!r} after set_{name}({value})"
    case.assert_scales(scaler, found_inf, expected, rounding)


@check(
    1,
    needs="override",
    before=FEW,
    new_scale=st.sampled_from([2.0, 1024.0, 1700.3, 2.0**100]),
    after=FEW,
    tensor=st.booleans(),
)
def new_scale_keeps_growth_tracker(
    case: ScalerAdapter,
    before: Flags,
    new_scale: float,
    after: Flags,
    tensor: bool,
) -> None:
    """update(new_scale) sets the scale to float32(new_scale) and does not change the growth
    tracker.

    A later change of the given tensor has no effect. A scaler may raise for a tensor.
    """
    overrides = {len(before): new_scale}
    expected = case.expected_scales(before + after, overrides, growth_interval=3)
    scaler = case.make(growth_interval=3)
    case.iterate_each(scaler, before)
    case.loss_scale(scaler)
    given = torch.tensor(new_scale)
    try:
        scaler.update(given if tensor else new_scale)
    except Exception:
        if not tensor:
            raise
        scaler.update(new_scale)
    given.zero_()
    case.assert_scales(scaler, after, expected[len(before) :])


@check(
    1,
    needs="enabled",
    rule=rules(growth=False),
    found_inf=st.lists(st.booleans(), min_size=1, max_size=4),
    unscales=st.just(True),
    loads=st.just(True),
)
def disabled_scaler_changes_nothing(
    case: ScalerAdapter,
    rule: Constants,
    found_inf: Flags,
    unscales: bool,
    loads: bool,
) -> None:
    """A disabled scaler does not scale, unscale, or skip, and loads the state dict that it saves."""
    scaler = case.make(**rule, enabled=False)
    (param, optimizer), (alone, other) = (sgd(3, momentum=0.9) for _ in range(2))
    for overflows in found_inf:
        scale = case.loss_scale(scaler)
        shown = scaler.get_scale()
        assert scale == 1.0 == shown, f"it multiplied by {scale}, get_scale() {shown}"
        for each in (param, alone):
            each.grad = gradient(3.0, overflows)
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        other.step()
        scaler.update()
        if loads:
            scaler.load_state_dict(scaler.state_dict())
        same = repr(param.tolist()) == repr(alone.tolist())
        assert same, "the optimizer stepped differently than without the scaler"


# ---------------------------------------------------------------------------------------- errors


def text_of(refusal: Refusal) -> str:
    """Return the repr of torch's exception."""
    return f"{refusal.kind.__name__}({refusal.text!r})"


NO_GRADIENTS = text_of(refusals.NOTHING_CHECKED)
FLOAT16 = text_of(refusals.FLOAT16)
CLOSURE = text_of(refusals.CLOSURE)
NOT_A_LOSS = text_of(refusals.NOT_A_LOSS)
GROWTH_FACTOR = text_of(refusals.GROWTH_FACTOR)
BACKOFF_FACTOR = text_of(refusals.BACKOFF_FACTOR)


@check(1, issue="Haian-Jin/LVSM#19", needs="misuse_errors")
def misuse_raises(case: ScalerAdapter) -> None:
    """A step() without gradients or with closure=, and scale() of no tensor raise."""
    scaler = case.ready_to_step()
    # The gradients of a closure would not be checked.
    with case.raises(scaler, CLOSURE):
        scaler.step(case.optimizer, closure=lambda: 5.0)
    for outputs in (3.0, None):
        with case.raises(scaler, NOT_A_LOSS):
            scaler.scale(outputs)
    case.param.grad = None  # the parameters are frozen, or of another copy of the model
    scaler = case.make()
    case.loss_scale(scaler)
    with case.raises(scaler, NO_GRADIENTS):
        scaler.step(case.optimizer)


@check(
    1,
    issue="bitsandbytes-foundation/bitsandbytes#945",
    needs="float16 misuse_errors unscale_",
)
def float16_gradients_raise(case: ScalerAdapter) -> None:
    """unscale_() raises for float16 gradients, because unscaled gradients would underflow again."""
    scaler = case.make()
    half = torch.nn.Parameter(torch.ones(3, dtype=torch.float16))
    case.loss_scale(scaler)
    half.grad = torch.ones_like(half)
    with case.raises(scaler, FLOAT16):
        scaler.unscale_(torch.optim.SGD([half], lr=0.125))
    assert (half.grad == 1.0).all(), "it raised, but the gradients changed"


@check(1, issue="davda54/sam#97", needs="misuse_errors")
def positional_closure_raises(case: ScalerAdapter) -> None:
    """step(optimizer, closure) raises like step(optimizer, closure=...)."""
    scaler = case.ready_to_step()
    with case.raises(scaler, CLOSURE):
        scaler.step(case.optimizer, lambda: 5.0)


@check(
    1,
    needs="misuse_errors",
    factors=st.sampled_from([(1.0, 0.5), (0.5, 0.5), (2.0, 1.0), (2.0, 2.0)]),
)
def neutral_factors_raise(case: ScalerAdapter, factors: tuple[float, float]) -> None:
    """The constructor raises for a growth factor of at most 1 and for a backoff factor of at least
    1.
    """
    growth, backoff = factors
    expected = GROWTH_FACTOR if growth <= 1 else BACKOFF_FACTOR
    try:
        case.construct(growth_factor=growth, backoff_factor=backoff)
    except Exception as error:
        same = repr(error) == expected or not case.traits.drop_in
        assert same, f"construction raised {error!r}, expected {expected}"
    else:
        raise AssertionError(
            f"growth_factor={growth}, backoff_factor={backoff} was accepted, expected {expected}"
        )


INVALID = (
    *(("init_scale", value) for value in (0.0, -1.0, math.inf, math.nan)),
    ("growth_factor", math.nan),
    ("backoff_factor", 0.0),
    ("backoff_factor", -1.0),
    ("growth_interval", 0),
)


@check(
    1,
    issue="ooples/AiDotNet.Tensors#277",
    needs="misuse_errors",
    constant=st.sampled_from(INVALID),
)
def invalid_arguments_raise(case: ScalerAdapter, constant: tuple[str, float]) -> None:
    """The constructor raises for a scale of 0, -1, inf, or NaN, a factor of NaN, 0, or -1, and an
    interval of 0.
    """
    name, value = constant
    try:
        case.construct(**{name: value})
    except Exception:
        return
    raise AssertionError(f"{name}={value!r} was accepted")
