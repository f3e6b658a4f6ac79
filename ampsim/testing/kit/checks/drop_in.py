"""Level 1: torch.amp.GradScaler's methods, their return values, and their errors."""

import math

import torch
from hypothesis import strategies as st

from ampsim.core.machine import Rule
from ampsim.core.torch_model import refusals
from ampsim.testing.kit.check import check
from ampsim.testing.kit.expected import said, scales
from ampsim.testing.kit.strategies import histories, rules
from ampsim.testing.kit.subject import Traits

SCALES = st.sampled_from([2.0, 1024.0, 1700.3, 2.0**100])


@check(
    1,
    rule=rules(growth=False),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    shape=st.sampled_from([(), (3,)]),
)
def loss_is_multiplied_by_scale(make, drop_in, rule, dtype, shape):
    """scale() returns loss times scale in the same container and does not change the loss.

    A drop-in uses torch's type promotion exactly. Others may keep the dtype of the loss, or raise for a container.
    """
    scaler, leaf = make(**rule), torch.full(shape, 0.3, dtype=dtype, requires_grad=True)
    loss = leaf * 1.0
    expected = loss.detach() * torch.tensor(scaler.get_scale())
    scaled = [scaler.scale(loss)]
    try:
        both = scaler.scale([loss, (loss,)])
    except Exception:
        if drop_in:
            raise
    else:
        first, inner = both
        assert (type(both), type(inner)) == (list, tuple), (
            f"a list of a loss and a tuple became {both!r}"
        )
        scaled += [first, *inner]
    for got in scaled:
        keeps = not drop_in and got.dtype == dtype
        rounding = max(torch.finfo(dtype).eps, 2.0**-23)
        same = (
            torch.allclose(got, expected.to(dtype), rounding, 0.0)
            if keeps
            else torch.equal(got, expected)
        )
        assert same and (keeps or got.dtype == expected.dtype), (
            f"{leaf!r} became {got!r}, expected {expected!r}"
        )
    assert torch.equal(loss, leaf), f"the loss itself became {loss!r}"


@check(
    1,
    issue="pytorch/pytorch#67590",
    needs="skip_report",
    found_inf=histories(longest=6),
    kernel=st.booleans(),
)
def last_step_reports_skip(make, found_inf, kernel):
    """After step(), ``last_step.skipped`` reports whether the optimizer was skipped, fused or not."""
    scaler, param = make(growth_interval=3), torch.nn.Parameter(torch.ones(3))
    optimizer = (
        torch.optim.AdamW([param], lr=0.125, fused=True) if kernel else torch.optim.SGD([param])
    )
    for overflows in found_inf:
        scale = float(scaler.scale(torch.ones(())))
        param.grad = torch.tensor([scale, scale, math.inf if overflows else scale])
        scaler.step(optimizer)
        scaler.update()
        assert hasattr(scaler, "last_step"), "the scaler has no last_step"
        assert bool(scaler.last_step.skipped) == overflows, (
            f"last_step.skipped is {scaler.last_step.skipped!r}"
        )


@check(1, needs="step_value", overflows=st.booleans(), given=st.booleans())
def step_returns_optimizer_result(make, loss_scale, overflows, given):
    """step() returns the value of the optimizer's step, or None for a skip; it passes arguments on or raises."""

    class Returns(torch.optim.SGD):
        def step(self, factor=1.0, times=1.0):
            super().step()
            return 5.0 * factor * times

    scaler, param = make(growth_interval=3), torch.nn.Parameter(torch.ones(3))
    scale = loss_scale(scaler)
    param.grad = torch.tensor([scale, scale, math.inf if overflows else scale])
    expected = None if overflows else 30.0 if given else 5.0
    try:
        got = scaler.step(
            Returns([param], lr=0.1), *[2.0] * given, **{"times": 3.0} if given else {}
        )
    except Exception:
        assert given, "step() raised"
        return
    assert got == expected, f"step() returned {got!r}, expected {expected!r}"


def after_setting(traits: Traits, found_inf: list[bool], factor: tuple[str, float]) -> list[float]:
    """Return the scales at an interval of 1 and with this factor, or at this interval."""
    name, value = factor
    return scales(traits, Rule(**{"growth_interval": 1, name: value}), found_inf)  # type: ignore[arg-type]


FACTORS = st.sampled_from([("growth_factor", 3.0), ("backoff_factor", 0.7), ("growth_interval", 2)])


@check(1, needs="setters", found_inf=histories(longest=6), factor=FACTORS, expected=after_setting)
def setters_take_effect(make, iterate, delay, drop_in, found_inf, factor, expected):
    """The getter returns the factor or interval that was set, and the next growth or backoff uses it."""
    scaler, (name, value), rounding = (
        make(growth_interval=1),
        factor,
        0.0 if drop_in else 2.0**-20,
    )  # of 6 updates
    getattr(scaler, f"set_{name}")(value)
    got = getattr(scaler, f"get_{name}")()
    assert got == value or delay, f"get_{name}() is {got!r} after set_{name}({value})"
    for overflows, due in zip([*found_inf, False], expected):
        scale = iterate(scaler, overflows)
        assert math.isclose(scale, due, rel_tol=rounding), f"the scale is {scale}, expected {due}"


FEW = histories(longest=4)


def overridden(
    traits: Traits, before: list[bool], new_scale: float, after: list[bool], tensor: bool
) -> list[float]:
    """Return the scales of an overflow sequence with update(new_scale) in the middle."""
    return scales(traits, Rule(growth_interval=3), before + after, {len(before): new_scale})[
        len(before) :
    ]


@check(
    1,
    needs="override",
    before=FEW,
    new_scale=SCALES,
    after=FEW,
    tensor=st.booleans(),
    expected=overridden,
)
def new_scale_keeps_growth_tracker(
    make, iterate, loss_scale, before, new_scale, after, tensor, expected
):
    """update(new_scale) sets the scale to float32(new_scale) and does not change the growth tracker.

    A later change of the given tensor has no effect. A scaler may raise for a tensor.
    """
    scaler = make(growth_interval=3)
    for overflows in before:
        iterate(scaler, overflows)
    loss_scale(scaler)
    given = torch.tensor(new_scale)
    try:
        scaler.update(given if tensor else new_scale)
    except Exception:
        if not tensor:
            raise
        scaler.update(new_scale)
    given.zero_()
    for overflows, due in zip([*after, False], expected):
        scale = iterate(scaler, overflows)
        assert scale == due, f"the scale is {scale}, expected {due}"


HISTORIES = st.lists(st.booleans(), min_size=1, max_size=4)


@check(
    1,
    needs="enabled",
    rule=rules(growth=False),
    found_inf=HISTORIES,
    unscales=st.just(True),
    loads=st.just(True),
)
def disabled_scaler_changes_nothing(make, params, optimizers, rule, found_inf, unscales, loads):
    """A disabled scaler does not scale, unscale, or skip, and loads the state dict that it saves."""
    scaler, (param, alone, _), (optimizer, other, _) = (
        make(**rule, enabled=False),
        params,
        optimizers,
    )
    for overflows in found_inf:
        scale = float(scaler.scale(torch.ones(())))
        assert scale == 1.0 == scaler.get_scale(), (
            f"it multiplied by {scale}, get_scale() {scaler.get_scale()}"
        )
        for each in (param, alone):
            each.grad = torch.tensor([3.0, 3.0, math.inf if overflows else 3.0])
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        other.step()
        scaler.update()
        if loads:
            scaler.load_state_dict(scaler.state_dict())
        assert repr(param.tolist()) == repr(alone.tolist()), (
            "the optimizer stepped differently than without the scaler"
        )


# ------------------------------------------------------------------------------------------- errors


@check(
    1,
    issue="huggingface/transformers#24840",
    needs="refusals unscale_",
    words=said(refusals.UNSCALED_TWICE),
)
def unscale_twice_raises(ready, refused, optimizer, words):
    """A second unscale_() of one optimizer between updates raises and does not divide again."""
    scaler = ready()
    scaler.unscale_(optimizer)
    with refused(scaler, words):
        scaler.unscale_(optimizer)


@check(1, needs="refusals unscale_", words=said(refusals.UNSCALED_LATE))
def unscale_after_step_raises(ready, refused, optimizer, words):
    """unscale_() after step() raises."""
    scaler = ready()
    scaler.step(optimizer)
    with refused(scaler, words):
        scaler.unscale_(optimizer)


@check(1, issue="Haian-Jin/LVSM#19", needs="refusals", words=said(refusals.STEPPED_TWICE))
def step_twice_raises(ready, refused, optimizer, words):
    """A second step() of one optimizer between updates raises, because an update is missing."""
    scaler = ready()
    scaler.step(optimizer)
    with refused(scaler, words):
        scaler.step(optimizer)


@check(
    1,
    issue="facebookresearch/fairseq2#1346",
    needs="drop_in refusals unscale_",
    unscale=said(refusals.before_scale("unscale_")),
    step=said(refusals.before_scale("step")),
    update=said(refusals.before_scale("update")),
)
def calls_before_scale_raise(make, refused, param, optimizer, unscale, step, update):
    """Before the first scale(), unscale_(), step(), and update() raise."""
    scaler, param.grad = make(), torch.ones(3)
    with refused(scaler, unscale):
        scaler.unscale_(optimizer)
    with refused(scaler, step):
        scaler.step(optimizer)
    with refused(scaler, update):
        scaler.update()


@check(
    1, issue="huggingface/accelerate#328", needs="refusals", words=said(refusals.NOTHING_CHECKED)
)
def step_without_gradients_raises(make, loss_scale, refused, optimizer, words):
    """step() of an optimizer without gradients raises: its parameters are frozen, or of another copy of the model."""
    scaler = make()
    loss_scale(scaler)
    with refused(scaler, words):
        scaler.step(optimizer)


@check(1, needs="refusals", words=said(refusals.NOTHING_CHECKED_AT_ALL))
def update_without_step_raises(make, iterate, loss_scale, refused, words):
    """update() raises if no optimizer was unscaled or stepped since the last update."""
    scaler = make()
    iterate(scaler, False)
    loss_scale(scaler)
    with refused(scaler, words):
        scaler.update()


@check(
    1,
    issue="bitsandbytes-foundation/bitsandbytes#945",
    needs="float16 refusals unscale_",
    words=said(refusals.FLOAT16),
)
def float16_gradients_raise(make, refused, words):
    """unscale_() raises for float16 gradients, because unscaled gradients would underflow again."""
    scaler, half = make(), torch.nn.Parameter(torch.ones(3, dtype=torch.float16))
    scaler.scale(torch.ones(()))
    half.grad = torch.ones_like(half)
    with refused(scaler, words):
        scaler.unscale_(torch.optim.SGD([half], lr=0.125))
    assert (half.grad == 1.0).all(), "it raised, but the gradients changed"


@check(1, issue="davda54/sam#97", needs="refusals", words=said(refusals.CLOSURE))
def keyword_closure_raises(ready, refused, optimizer, words):
    """step(optimizer, closure=...) raises, because gradients of the closure are not checked."""
    scaler = ready()
    with refused(scaler, words):
        scaler.step(optimizer, closure=lambda: 5.0)


@check(1, issue="davda54/sam#97", needs="refusals", words=said(refusals.CLOSURE))
def positional_closure_raises(ready, refused, optimizer, words):
    """step(optimizer, closure) raises like step(optimizer, closure=...)."""
    scaler = ready()
    with refused(scaler, words):
        scaler.step(optimizer, lambda: 5.0)


@check(1, needs="refusals", junk=st.sampled_from([3.0, None]), words=said(refusals.NOT_A_LOSS))
def non_tensor_loss_raises(make, refused, junk, words):
    """scale() raises for an argument that is neither a tensor nor an iterable of tensors."""
    scaler = make()
    with refused(scaler, words):
        scaler.scale(junk)


def of_construction(_: Traits, factors: tuple[float, float]) -> str:
    """Return the exception that torch raises for factors."""
    return said(refusals.GROWTH_FACTOR if factors[0] <= 1 else refusals.BACKOFF_FACTOR)()


@check(
    1,
    needs="refusals",
    factors=st.sampled_from([(1.0, 0.5), (0.5, 0.5), (2.0, 1.0), (2.0, 2.0)]),
    words=of_construction,
)
def neutral_factors_raise(construct, drop_in, factors, words):
    """The constructor raises for a growth factor of at most 1 and for a backoff factor of at least 1."""
    growth, backoff = factors
    try:
        construct(growth_factor=growth, backoff_factor=backoff)
    except Exception as error:
        assert repr(error) == words or not drop_in, (
            f"construction raised {error!r}, expected {words}"
        )
    else:
        raise AssertionError(
            f"growth_factor={growth}, backoff_factor={backoff} was accepted, expected {words}"
        )


NONSENSE = (
    *(("init_scale", value) for value in (0.0, -1.0, math.inf, math.nan)),
    *(
        ("growth_factor", math.nan),
        ("backoff_factor", 0.0),
        ("backoff_factor", -1.0),
        ("growth_interval", 0),
    ),
)


@check(1, issue="ooples/AiDotNet.Tensors#277", needs="refusals", constant=st.sampled_from(NONSENSE))
def invalid_arguments_raise(construct, constant):
    """The constructor raises for a scale of 0, -1, inf, or NaN, a factor of NaN, 0, or -1, and an interval of 0."""
    name, value = constant
    try:
        construct(**{name: value})
    except Exception:
        return
    raise AssertionError(f"{name}={value!r} was accepted")
