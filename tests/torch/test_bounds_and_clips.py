"""Scales against the reference machine; bounds, clips and formats of one optimizer's gradients."""

import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ampsim.core.machine import Rule, State, override, update
from ampsim.torch import GradScaler
from tests.torch.helpers import INF, NAN, an_optimizer, bits


def one_step(scaler, *gradients, kind=torch.optim.SGD):
    """Step one optimizer for each scaled gradient, then update; return the parameters."""
    params = []
    scaler.scale(torch.tensor(1.0))
    for gradient in gradients:
        param, optimizer = an_optimizer(0.0, kind=kind, lr=1.0)
        param.grad = torch.tensor([gradient])
        scaler.step(optimizer)
        params.append(param.item())
    scaler.update()
    return params


# ------------------------------------------------------------------------------------------ scales

EXPONENTS = [2.0**e for e in (-126, -64, -1, 0, 10, 16, 100, 126, 127)]
events = st.one_of(
    st.lists(st.sampled_from([1.0, 1.0, INF, NAN]), min_size=1, max_size=3),
    st.sampled_from([2.0**-126, 1.0, 0.3, 8.0, 1e30]),
)


@given(
    init=st.sampled_from([*EXPONENTS, 1700.0, 0.1, 3e38]),
    factors=st.sampled_from([(2.0, 0.5), (3.0, 0.7), (1.1, 0.5), (2.0**64, 2.0**-64)]),
    interval=st.integers(1, 3),
    bounds=st.sampled_from([(2.0**-126, None), (2.0**-126, 2.0**20), (0.25, 2.0**120)]),
    plan=st.lists(events, max_size=12),
)
@example(2.0**100, (2.0**64, 2.0**-64), 1, (0.25, 2.0**120), [[1.0]])
def test_state_matches_reference_state_machine(init, factors, interval, bounds, plan):
    low, high = (
        None if bound is None else torch.tensor(bound).item() for bound in bounds
    )
    init = min(max(init, low), high or init)
    rule = Rule(
        init, *factors, interval, min_scale=low, max_scale=high, growth_test=">="
    )
    state = State(torch.tensor(init).item())
    options = {"min_scale": low, "max_scale": high}
    scaler = GradScaler("cpu", init, *factors, interval, **options)
    scaler.scale(torch.tensor(1.0))
    for event in plan:
        if isinstance(event, list):
            one_step(scaler, *event)
            found_inf = any(x != 1.0 for x in event)
            grown = update(rule, state, found_inf)
            is_growth = not found_inf and grown.growth_tracker == 0
            if is_growth and state.scale * factors[0] > torch.finfo(torch.float32).max:
                # torch's kernel keeps a scale that would grow beyond float32, also below
                # `max_scale`.
                grown = replace(grown, scale=state.scale)
            state = grown
        else:
            new = min(max(event, low), high or event)
            scaler.update(new)
            state = override(rule, state, new)
        assert scaler.get_scale() == state.scale
        assert scaler._get_growth_tracker() == state.growth_tracker


@pytest.mark.parametrize("lower", ["set", "load"])
@pytest.mark.parametrize(("interval", "max_scale"), [(1, None), (3, 6.0), (5, None)])
def test_lowered_interval_does_not_stop_growth(interval, max_scale, lower):
    options = {"growth_interval": 2**40, "max_scale": max_scale}
    scaler = GradScaler("cpu", init_scale=4.0, **options)
    for _ in range(5):
        one_step(scaler, 1.0)
    if lower == "set":
        scaler.set_growth_interval(interval)
    else:
        scaler.load_state_dict(scaler.state_dict() | {"growth_interval": interval})
    one_step(scaler, 1.0)
    assert (scaler.get_scale(), scaler._get_growth_tracker()) == (max_scale or 8.0, 0)


def test_outputs_on_two_devices_share_scale():
    scaler = GradScaler("cpu", init_scale=4.0)
    here, there = scaler.scale([torch.ones(2), torch.ones(3, device="meta")])
    assert here.tolist() == [4.0, 4.0]
    assert there.device.type == "meta"
    assert scaler.get_scale() == 4.0


def test_bounds_are_rounded_to_float32():
    # 0.7 is 0.69999999 in float32: compared as a double, a saved scale would be out of bounds.
    scaler = GradScaler("cpu", init_scale=0.9, min_scale=0.7, max_scale=0.9)
    scaler.scale(torch.tensor(1.0))
    assert scaler.get_scale() == torch.tensor(0.9).item() != 0.9
    scaler.load_state_dict(scaler.state_dict())
    scaler.update(0.7)
    scaler.update(0.9)
    assert scaler.get_scale() == torch.tensor(0.9).item()
    scaler.load_state_dict(scaler.state_dict())


@pytest.mark.parametrize("max_scale", [INF, 1e39])
def test_infinite_new_scale_raises(max_scale):
    scaler = GradScaler("cpu", max_scale=max_scale)
    scaler.scale(torch.tensor(1.0))
    with pytest.raises(ValueError, match="inf"):
        scaler.update(INF)


# ----------------------------------------------------------------------------------- on_min_scale


def test_raise_option_raises_at_min_scale():
    scaler = GradScaler("cpu", init_scale=4.0, min_scale=2.0, on_min_scale="raise")
    one_step(scaler, INF)
    with pytest.raises(FloatingPointError, match=r"2\.0"):
        one_step(scaler, 1.0, INF, 1.0)
    with pytest.raises(FloatingPointError, match=r"2\.0"):
        scaler.update()  # again, because nothing has changed
    scaler.update(8.0)
    assert scaler.get_scale() == 8.0


def test_warn_option_warns_at_min_scale():
    scaler = GradScaler("cpu", init_scale=4.0, min_scale=2.0, on_min_scale="warn")
    one_step(scaler, INF)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="overflow at scale 2.0") as warned:
            one_step(scaler, INF)
        assert warned[0].filename == one_step.__code__.co_filename  # the loop's file
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize(
    ("choice", "overflows"), [("clamp", 5), ("raise", 2), ("warn", 2)]
)
def test_no_warning_above_min_scale(choice, overflows):
    scaler = GradScaler("cpu", init_scale=8.0, min_scale=2.0, on_min_scale=choice)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(overflows):
            one_step(scaler, INF)
        one_step(scaler, 1.0)
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize(
    ("options", "error", "value"),
    [
        ({"on_min_scale": "stay"}, ValueError, "'stay'"),
        ({"min_scale": 2.0**-127}, ValueError, "min_scale=5.8[0-9]*e-39"),
        (
            {"min_scale": 4.0, "max_scale": 2.0},
            ValueError,
            r"min_scale=4\.0 > max_scale=2\.0",
        ),
        ({"max_scale": 2.0}, ValueError, r"init_scale=65536\.0"),
        ({"min_scale": True}, TypeError, "min_scale=True"),
        ({"growth_factor": 1.0}, AssertionError, "growth factor"),
        ({"backoff_factor": 1.0}, AssertionError, "backoff factor"),
    ],
)
def test_invalid_option_raises_with_value(options, error, value):
    with pytest.raises(error, match=value):
        GradScaler("cpu", **options)


# -------------------------------------------------------------------------------------- optimizers


def test_last_step_describes_newest_iteration():
    scaler = GradScaler("cpu")
    assert list(scaler.last_step) == []
    (clean, of_clean), (other, of_other) = (
        an_optimizer(0.0),
        an_optimizer(0.0, fused=True),
    )
    for skipped in (True, False):
        scaler.scale(torch.tensor(1.0))
        clean.grad, other.grad = torch.ones(1), torch.tensor([INF if skipped else 1.0])
        scaler.step(of_clean)
        early = scaler.last_step
        scaler.step(of_other)
        scaler.update()
        assert (list(early), early.skipped) == ([of_clean], False)  # it does not grow
        assert scaler.last_step.skipped is skipped
        assert not scaler.last_step.skipped_by(of_clean)
        assert scaler.last_step.skipped_by(of_other) is skipped
    assert str(skipped) in repr(scaler.last_step)
    with pytest.raises(TypeError, match="skipped"):
        bool(scaler.last_step)
    with pytest.raises(KeyError):
        scaler.last_step.skipped_by(an_optimizer(0.0)[1])


class Wrapped:
    """An optimizer in a wrapper, which needs ``param_groups`` and ``step`` only."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)

    def step(self):
        return self.optimizer.step()


class Unhashable(Wrapped):
    __hash__ = None


class AllEqual(Wrapped):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


class Slots:  # no weak references
    __slots__ = ("optimizer",)
    __init__, step = Wrapped.__init__, Wrapped.step
    param_groups, state = Wrapped.param_groups, Wrapped.state


@pytest.mark.parametrize("kind", [Unhashable, AllEqual, Slots])
def test_optimizers_are_distinguished_by_identity(kind):
    scaler = GradScaler("cpu", init_scale=4.0)
    (one, of_one), (two, of_two) = an_optimizer(0.0, lr=1.0), an_optimizer(0.0, lr=1.0)
    first, second = kind(of_one), kind(of_two)
    scaler.scale(one.sum() + two.sum()).backward()
    two.grad.fill_(INF)
    scaler.unscale_(first)
    scaler.step(first)
    scaler.step(second)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(first)
    assert not scaler.last_step.skipped_by(first)
    assert scaler.last_step.skipped_by(second)
    assert (one.item(), two.item()) == (-1.0, 0.0)


# ------------------------------------------------------------------------------------------- clips


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("max_norm", [0.5, 1e3])
def test_unscale_and_clip_matches_torch(fused, dtype, max_norm):
    shapes = [(3,), (20_000,), (7, 5), (1,)]
    results = []
    for make in (GradScaler, torch.amp.GradScaler):
        generator = torch.Generator().manual_seed(0)
        params = [torch.nn.Parameter(torch.zeros(s, dtype=dtype)) for s in shapes]
        optimizer = torch.optim.SGD(params, lr=1.0, fused=fused)
        scaler = make("cpu", init_scale=2.0**10)
        scaler.scale(torch.tensor(1.0))
        for param in params:
            param.grad = (
                torch.randn(param.shape, generator=generator).mul(2.0**8).to(dtype)
            )
        if make is GradScaler:
            norm = scaler.unscale_and_clip_(optimizer, max_norm)
            assert (norm.shape, norm.dtype) == ((), torch.float32)
        else:
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
        scaler.step(optimizer)
        results.append([norm.double(), *[param.detach().double() for param in params]])
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-5
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("fused", [False, True])  # where they stay scaled
def test_float16_gradients_are_clipped(fused):
    param, optimizer = an_optimizer(0.0, 0.0, dtype=torch.float16, lr=1.0, fused=fused)
    scaler = GradScaler("cpu", init_scale=2.0**10, allow_fp16=not fused)
    scaler.scale(torch.tensor(1.0))
    param.grad = torch.tensor([3.0, 4.0], dtype=torch.float16) * 2**10
    assert scaler.unscale_and_clip_(optimizer, 2.5) == 5.0
    scaler.step(optimizer)
    assert param.tolist() == [-1.5, -2.0]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("gradient", "norm", "scale"), [(8.0, 2.0, 8.0), (INF, INF, 4.0)]
)
def test_max_norm_zero_is_accepted(fused, gradient, norm, scale):
    params = [torch.zeros(4, requires_grad=True), torch.zeros(0, requires_grad=True)]
    optimizer, scaler = (
        torch.optim.AdamW(params, fused=fused),
        GradScaler("cpu", init_scale=8.0),
    )
    scaler.scale(torch.tensor(1.0))
    params[0].grad, params[1].grad = torch.full((4,), gradient), torch.zeros(0)
    assert scaler.unscale_and_clip_(optimizer, 0.0).item() == norm
    scaler.step(optimizer)
    scaler.update()
    assert params[0].tolist() == [0.0] * 4
    assert scaler.get_scale() == scale


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize(
    "max_norm", [NAN, -1.0, torch.tensor(-INF), "1.0", None, torch.ones(2)]
)
def test_invalid_max_norm_raises(max_norm, enabled):
    scaler = GradScaler("cpu", init_scale=4.0, enabled=enabled)
    param, optimizer = an_optimizer(1.0)
    scaler.scale(param.sum()).backward()
    before = bits(param, param.grad)
    with pytest.raises((ValueError, TypeError), match="max_norm="):
        scaler.unscale_and_clip_(optimizer, max_norm)
    assert bits(param, param.grad) == before
    assert scaler.unscale_and_clip_(optimizer, torch.tensor(0.5)).item() == 1.0
    scaler.step(optimizer)


def test_clip_without_gradients_only_unscales():
    scaler = GradScaler("cpu")
    _, optimizer = an_optimizer(0.0)
    scaler.scale(torch.tensor(1.0))
    assert scaler.unscale_and_clip_(optimizer, 1.0) == 0.0
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_and_clip_(optimizer, 1.0)


# ----------------------------------------------------------------------------------------- formats


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # torch 2.11
@pytest.mark.parametrize("clips", [False, True])
def test_sparse_gradients_are_unscaled_and_checked(clips):
    param, optimizer = an_optimizer(0.0, 0.0, 0.0, dtype=torch.float16, lr=1.0)
    scaler = GradScaler("cpu", init_scale=4.0, allow_fp16=True)
    for values in ([8.0, 4.0, 4.0], [6e4, 6e4, 0.0]):
        scaler.scale(torch.tensor(1.0))
        gradient = torch.tensor(values, dtype=torch.float16)
        param.grad = torch.sparse_coo_tensor(
            [[0, 0, 2]], gradient, (3,), check_invariants=False
        )
        if clips:
            scaler.unscale_and_clip_(optimizer, 100.0)
        scaler.step(optimizer)
        scaler.update()
        assert param.tolist() == [-3.0, 0.0, -1.0]
    assert scaler.last_step.skipped  # the sum of duplicates overflows, no element does


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("init_scale", [4.0, 0.5])
def test_large_float64_gradient_does_not_skip(init_scale, fused):
    scaler = GradScaler("cpu", init_scale=init_scale)
    param, optimizer = an_optimizer(0.0, dtype=torch.float64, fused=fused, lr=1.0)
    scaler.scale(torch.tensor(1.0))
    param.grad = torch.tensor([1e300], dtype=torch.float64)
    scaler.step(optimizer)
    assert param.item() == -1e300 / init_scale
