"""Versions, policies, bounds, formats: what holds on any device, with the CPU standing in for one."""

import warnings
from contextlib import suppress
from functools import partial
from unittest import mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from ampsim.core.machine import Rule, State
from ampsim.core.policies import Probe
from ampsim.torch import GradScaler, config
from ampsim.torch.gradients import unscale
from ampsim.torch.gradients.unscale import FoundInf
from ampsim.torch.state.device import DeviceVersion, StaticVersion
from ampsim.torch.state.host import HostVersion
from ampsim.torch.state.version import Outcome, Successor
from ampsim.torch.step.records import Record, StepReport
from tests.torch import helpers
from tests.torch.helpers import INF, NAN, bits

CPU = torch.device("cpu")
EXPONENTS = [2.0**e for e in (-126, -64, -1, 0, 10, 16, 100, 126, 127)] + [1700.0, 0.1, 3e38]


def on_device(state, rule):
    """What a state becomes on a CUDA device, on the CPU."""
    return DeviceVersion.start((state,), rule, CPU)[0]


events = st.one_of(
    st.lists(st.sampled_from([0.0, 0.0, 1.0, 2.0, NAN]), min_size=1, max_size=3),
    st.sampled_from([2.0**-126, 1.0, 0.3, 8.0, 1e30]),
)


@given(
    init=st.sampled_from(EXPONENTS),
    growth=st.sampled_from([2.0, 3.0, 1.1, 2.0**64]),
    backoff=st.sampled_from([0.5, 0.7, 2.0**-64]),
    interval=st.integers(1, 3),
    bounds=st.sampled_from([(2.0**-126, None), (2.0**-126, 2.0**20), (0.25, 3e38)]),
    plan=st.lists(events, max_size=20),
)
@example(2.0**127, 2.0, 0.5, 2, (2.0**-126, 3e38), [[0.0], [0.0]])  # a growth out of float32 ends at the bound
def test_a_state_on_a_device_is_the_state_on_the_host(init, growth, backoff, interval, bounds, plan):
    """The kernel of torch on tensors against the reference machine, bit for bit, bounds included."""
    low, high = (None if b is None else torch.tensor(b).item() for b in bounds)
    init = min(max(init, low), high or init)
    rule = Rule(init, growth, backoff, interval, min_scale=low, max_scale=high)
    state = State(torch.tensor(init).item())
    host, device = HostVersion(state), on_device(state, rule)
    for event in plan:
        if isinstance(event, list):
            flags = [torch.tensor(value) for value in event]
            outcome = Outcome(flags)
            host, device = host.next(rule, outcome), device.next(rule, outcome)
        else:
            new = min(max(event, low), high or event)
            host, device = host.override(rule, new), device.override(rule, new)
        assert device.read() == host.read()
        assert device.scale._version == device.growth_tracker._version == 0
        assert torch.equal(device.scale_on(CPU), host.scale_on(CPU))
        assert torch.equal(device.inverse_on(CPU), host.inverse_on(CPU))


def test_an_optimizer_skips_where_one_of_its_devices_overflowed():
    optimizer = torch.optim.SGD([torch.zeros(1)])
    record = Record(optimizer)
    record.found_inf = FoundInf({torch.device("cpu"): torch.tensor(0.0), torch.device("cpu", 0): torch.tensor(1.0)})
    assert StepReport().adding(0, record).skipped_by(optimizer)


@pytest.mark.parametrize("fused", [False, True])
def test_a_clip_to_zero_and_a_gradient_without_elements_are_taken(fused):
    for value, norm in ((1.0, 2.0), (INF, INF)):
        params = [torch.zeros(4, requires_grad=True), torch.zeros(0, requires_grad=True)]
        optimizer, scaler = torch.optim.AdamW(params, fused=fused), GradScaler("cpu", init_scale=8.0)
        scaler.scale(torch.tensor(1.0))
        params[0].grad, params[1].grad = torch.full((4,), 8.0 * value), torch.zeros(0)
        assert scaler.unscale_and_clip_(optimizer, 0.0).item() == norm
        scaler.step(optimizer)
        scaler.update()
        assert params[0].tolist() == [0.0] * 4
        assert scaler.get_scale() == (4.0 if value == INF else 8.0)


def test_a_new_version_leaves_the_old_one_alone():
    rule = Rule(8.0, growth_interval=1)
    for version in (HostVersion(State(8.0)), on_device(State(8.0), rule)):
        after = version.next(rule, Outcome([torch.tensor(0.0)]))
        set_by_hand = version.override(rule, torch.tensor(3.0))
        assert (version.read().scale, after.read().scale, set_by_hand.read().scale) == (8.0, 16.0, 3.0)


@pytest.mark.parametrize(
    ("new", "becomes"), [(NAN, 8.0), (INF, 8.0), (-1.0, 2.0), (0.0, 2.0), (1e30, 64.0), (3.0, 3.0)]
)
def test_a_new_scale_on_a_device_is_bounded_without_being_read(new, becomes):
    # on the host it is refused; here its value could be known only by waiting
    rule = Rule(8.0, min_scale=2.0, max_scale=64.0)
    assert on_device(State(8.0), rule).override(rule, torch.tensor([new])).read().scale == becomes
    floored = rule.replace(max_scale=None)
    assert on_device(State(8.0), floored).override(floored, torch.tensor(NAN)).read().scale == 8.0


def test_a_scale_is_copied_once_to_each_device_that_asks_or_filled_in_there_each_time():
    meta = torch.device("meta")  # stands for a second device
    for version, kept in ((HostVersion(State(8.0)), False), (on_device(State(8.0), Rule()), True)):
        copies = [version.scale_on(meta) for _ in range(3)]
        assert all((copy is copies[0]) is kept for copy in copies[1:])
        assert (copies[0].device, copies[0].shape, copies[0].dtype) == (meta, (), torch.float32)
        assert version.inverse_on(meta).device == meta


@pytest.mark.parametrize("number", [3.0, 2.0**-130, 1e300, 0.0])
def test_a_scale_on_the_host_reaches_a_device_without_a_copy_that_waits(number, monkeypatch):
    real = torch.tensor

    def on_the_host(*args, device=None, **kwargs):
        assert device is None or torch.device(device).type == "cpu"  # elsewhere it copies from the host, and waits
        return real(*args, device=device, **kwargs)

    filled, full = [], torch.full
    monkeypatch.setattr(torch, "tensor", on_the_host)
    monkeypatch.setattr(
        torch, "full", lambda size, value, **kwargs: filled.append(value) or full(size, value, **kwargs)
    )
    version = HostVersion(State(number))
    version.scale_on(torch.device("meta"))
    version.inverse_on(torch.device("meta"))
    assert filled == [version.scale_on(CPU).item(), version.inverse_on(CPU).item()]


def test_a_copy_to_the_host_has_arrived_when_it_is_used():
    version = DeviceVersion(torch.tensor(4.0, device="meta"), torch.tensor(0, device="meta"))
    with Copies(version.scale) as copies, suppress(NotImplementedError):  # there is nothing to copy
        version.scale_on(CPU)
    assert copies.found == [("cpu", True)]


class Copies(TorchFunctionMode):
    """Notes where a tensor is copied, and whether the copy is waited for."""

    def __init__(self, tensor):
        self.tensor, self.found = tensor, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.to and args[0] is self.tensor:
            self.found.append((args[1].type, not (kwargs or {}).get("non_blocking", False)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [DeviceVersion, StaticVersion])
def test_a_scale_that_another_device_asks_for_is_not_waited_for(kind):
    version = kind(torch.tensor(4.0), torch.tensor(0))
    with Copies(version.scale) as copies:
        version.scale_on(torch.device("meta"))
    assert copies.found == [("meta", False)]


@pytest.mark.parametrize("exact_torch", [False, True])
def test_outputs_on_two_devices_get_one_scale(exact_torch):
    scaler = GradScaler("cpu", init_scale=4.0, exact_torch=exact_torch)
    here, there = scaler.scale([torch.ones(2), torch.ones(3, device="meta")])
    assert here.tolist() == [4.0, 4.0]
    assert there.device.type == "meta"
    assert scaler._scaled.value.read().scale == 4.0


def test_the_first_output_decides_where_the_scale_lives_unless_it_is_to_be_the_cpu():
    scaler = GradScaler("meta")
    scaler.scale(torch.ones(2, device="meta"))
    assert type(scaler._iterations.register.newest) is DeviceVersion
    assert scaler._iterations.register.newest.device.type == "meta"
    scaler = GradScaler("cpu")
    scaler.scale(torch.ones(2, device="meta"))
    assert scaler._iterations.register.newest.device == CPU


# ------------------------------------------------------------------------------------------------- optimizers


an_optimizer = partial(helpers.an_optimizer, lr=1.0)


def test_last_step_tells_each_optimizer_and_forgets_with_the_next_iteration():
    scaler = GradScaler("cpu")
    assert (scaler.last_step.ticket, list(scaler.last_step)) == (-1, [])
    clean, overflowing = an_optimizer(0.0), an_optimizer(0.0, kind=torch.optim.AdamW, fused=True)
    for skipped in (True, False):
        scaler.scale(torch.tensor(1.0))
        clean[0].grad, overflowing[0].grad = torch.ones(1), torch.tensor([INF if skipped else 1.0])
        scaler.step(clean[1])
        assert list(scaler.last_step) == [clean[1]]
        assert repr(scaler.last_step) == f"StepReport(ticket={scaler.last_step.ticket})"
        scaler.step(overflowing[1])
        scaler.update()
        assert scaler.last_step.skipped is skipped
        assert not scaler.last_step.skipped_by(clean[1])
        assert scaler.last_step.skipped_by(overflowing[1]) is skipped
    with pytest.raises(TypeError, match=r"neither true nor false: read \.skipped"):
        bool(scaler.last_step)
    with pytest.raises(KeyError, match="had no step in this iteration"):
        scaler.last_step.skipped_by(an_optimizer(0.0)[1])
    saved = scaler.state_dict()
    scaler.load_state_dict(saved)
    assert list(scaler.last_step) == []


class Wrapped:
    """An optimizer in a client's wrapper, which needs ``param_groups`` and ``step`` only."""

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


class Slots:
    __slots__ = ("optimizer",)
    __init__, param_groups, state, step = Wrapped.__init__, Wrapped.param_groups, Wrapped.state, Wrapped.step


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("kind", [Unhashable, AllEqual, Slots])
def test_optimizers_are_told_apart_by_identity_alone(kind, depth):
    scaler = GradScaler("cpu", init_scale=4.0, depth=depth)
    pairs = [an_optimizer(0.0) for _ in range(2)]
    wrapped = [kind(optimizer) for _, optimizer in pairs]
    for bad in (None, 0, 1):
        scaler.scale(sum(param.sum() for param, _ in pairs)).backward()
        before = [param.item() for param, _ in pairs]
        if bad is not None:
            pairs[bad][0].grad.fill_(INF)
        scaler.unscale_(wrapped[0])
        for each in wrapped:
            scaler.step(each)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.step(wrapped[0])
        assert [each is known for each, known in zip(scaler.last_step, wrapped, strict=True)] == [True, True]
        assert [scaler.last_step.skipped_by(each) for each in wrapped] == [bad == 0, bad == 1]
        assert [param.item() - x for (param, _), x in zip(pairs, before, strict=True)] == [
            0.0 if bad == i else -1.0 for i in range(2)
        ]
        scaler.update()
        for _, optimizer in pairs:
            optimizer.zero_grad()


@pytest.mark.parametrize("base", [Unhashable, AllEqual])
def test_fused_optimizers_that_keep_no_state_are_told_apart_by_identity_alone(base):
    class Fused(base):
        _step_supports_amp_scaling = True

        def step(self):
            steps.append(([each is self for each in wrapped], self.found_inf.item()))

    scaler, steps = GradScaler("cpu", init_scale=4.0), []
    pairs = [an_optimizer(0.0) for _ in range(2)]
    wrapped = [Fused(optimizer) for _, optimizer in pairs]
    scaler.scale(sum(param.sum() for param, _ in pairs)).backward()
    pairs[1][0].grad.fill_(INF)
    for each in wrapped:
        scaler.step(each)
    assert steps == [([True, False], 0.0), ([False, True], 1.0)]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # torch 2.11
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sparse_gradients_are_unscaled_checked_and_clipped(dtype):
    def gradient(*values):
        return torch.sparse_coo_tensor([[0, 0, 2]], torch.tensor(values, dtype=dtype), (3,), check_invariants=False)

    for how in ("step", "clip"):
        scaler = GradScaler("cpu", init_scale=4.0, allow_fp16=True)
        param, optimizer = an_optimizer(0.0, 0.0, 0.0, dtype=dtype)
        scaler.scale(torch.tensor(1.0))
        param.grad = gradient(8.0, 4.0, 4.0)
        if how == "clip":
            scaler.unscale_and_clip_(optimizer, 100.0)
        scaler.step(optimizer)
        assert param.tolist() == [-3.0, 0.0, -1.0]
    if dtype is torch.float16:  # duplicates whose sum overflows: seen because they are added up first
        param.grad = gradient(6e4, 6e4, 0.0)
        scaler.update()
        scaler.step(optimizer)
        assert scaler.last_step.skipped


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("max_norm", [NAN, -1.0, -INF, torch.tensor(NAN), torch.tensor([-1.0])])
def test_a_norm_that_no_clip_could_want_is_refused_before_anything_is_changed(max_norm, enabled, fused):
    scaler = GradScaler("cpu", init_scale=4.0, enabled=enabled)
    param, optimizer = an_optimizer(1.0, kind=torch.optim.AdamW, fused=fused)
    scaler.scale(param.sum()).backward()
    before = bits(param, param.grad)
    with pytest.raises(ValueError, match=r"max_norm=.*: expected a number of at least 0; .* pass math\.inf"):
        scaler.unscale_and_clip_(optimizer, max_norm)
    assert bits(param, param.grad) == before
    assert not scaler._records.any_from(0)
    for each in ("1.0", None, torch.ones(2)):
        with pytest.raises(TypeError, match=r"max_norm=.*: expected a number; pass a float such as 1\.0"):
            scaler.unscale_and_clip_(optimizer, each)
    assert scaler.unscale_and_clip_(optimizer, torch.tensor(0.5)).item() == 1.0
    scaler.step(optimizer)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("max_norm", "skipped"), [(0.5, False), (INF, False), (NAN, True), (-1.0, True)])
def test_a_norm_on_a_device_is_not_waited_for_and_a_senseless_one_skips(max_norm, skipped, dtype, fused, monkeypatch):
    options = {"device": "meta", "dtype": dtype}  # where nothing can be read
    param = torch.nn.Parameter(torch.ones(3, **options))
    param.grad = torch.ones(3, **options)
    scaler, optimizer = GradScaler("meta", allow_fp16=True), torch.optim.SGD([param], lr=1.0)
    optimizer._step_supports_amp_scaling = fused
    scaler.scale(torch.ones((), device="meta"))
    assert scaler.unscale_and_clip_(optimizer, torch.tensor(max_norm, device="meta")).device.type == "meta"

    monkeypatch.setattr(config, "check_max_norm", lambda max_norm: max_norm)  # as if the tensor were elsewhere
    param, optimizer = an_optimizer(1.0, 1.0, kind=torch.optim.SGD, dtype=dtype, fused=fused)
    scaler = GradScaler("cpu", init_scale=4.0, allow_fp16=True)
    scaler.scale(param.sum()).backward()
    scaler.unscale_and_clip_(optimizer, torch.tensor(max_norm))
    scaler.step(optimizer)
    assert scaler.last_step.skipped is skipped
    assert param.isfinite().all()
    assert (param <= 1.0).all()


@pytest.mark.parametrize(("device", "waits"), [("cpu", True), ("meta", False)])
def test_a_norm_is_waited_for_where_it_comes_to_the_host_only(device, waits, monkeypatch):
    monkeypatch.setattr(config, "check_max_norm", lambda max_norm: max_norm)  # as if the tensor were elsewhere
    param = torch.nn.Parameter(torch.ones(3, device=device))
    param.grad = torch.ones(3, device=device)
    scaler, optimizer = GradScaler(device), torch.optim.SGD([param], lr=1.0)
    scaler.scale(torch.ones((), device=device))
    with Copies(torch.ones(())) as copies:
        scaler.unscale_and_clip_(optimizer, copies.tensor)
    assert copies.found == [(device, waits)]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("max_norm", [0.5, 1e3])
def test_unscale_and_clip_is_unscale_and_clip_grad_norm(fused, dtype, max_norm):
    shapes = [(3,), (20_000,), (7, 5), (1,)]
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(s, generator=generator, dtype=torch.float64).div(4).to(dtype) for s in shapes]
    results = []
    for make in (GradScaler, torch.amp.GradScaler):
        params = [torch.nn.Parameter(torch.zeros(s, dtype=dtype)) for s in shapes]
        optimizer = torch.optim.SGD(params, lr=1.0, fused=fused)
        refuses = make is torch.amp.GradScaler and dtype is torch.float16  # to unscale these
        scaler = make("cpu", init_scale=2.0**10, **({"allow_fp16": True} if make is GradScaler else {}))
        scaler.scale(torch.tensor(1.0))
        for p, g in zip(params, gradients, strict=True):
            p.grad = g.clone() if refuses else (g.double() * 2.0**10).to(dtype)
        if make is GradScaler:
            norm = scaler.unscale_and_clip_(optimizer, max_norm)
            assert (norm.shape, norm.dtype) == ((), torch.float32)
            scaler.step(optimizer)
        else:
            if not refuses:
                scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
            optimizer.step()
        results.append([norm.double(), *[p.detach().double() for p in params]])
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=1e-6)


def test_unscale_and_clip_without_gradients_as_unscale_without():
    scaler = GradScaler("cpu")
    _, optimizer = an_optimizer(0.0)
    scaler.scale(torch.tensor(1.0))
    assert scaler.unscale_and_clip_(optimizer, 1.0) == 0.0
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
        scaler.unscale_and_clip_(optimizer, 1.0)


@pytest.mark.parametrize("bad", [INF, NAN])
@pytest.mark.parametrize("fused", [False, True])
def test_unscale_and_clip_sees_an_overflow(bad, fused):
    scaler = GradScaler("cpu")
    param, optimizer = an_optimizer(1.0, 1.0, kind=torch.optim.AdamW, fused=fused)
    scaler.scale(torch.tensor(1.0))
    param.grad = torch.tensor([1.0, bad])
    assert not scaler.unscale_and_clip_(optimizer, 1.0).isfinite()
    scaler.step(optimizer)
    scaler.update()
    assert param.tolist() == [1.0, 1.0]
    assert scaler.get_scale() == 2.0**15


def test_an_unscale_that_was_interrupted_leaves_no_flag():
    param, optimizer = an_optimizer(1.0)
    scaler = GradScaler("cpu", init_scale=4.0)
    scaler.scale(param.sum()).backward()
    param.grad.fill_(INF)
    interrupted = mock.patch("ampsim.torch.gradients.unscale.multiply_", side_effect=KeyboardInterrupt)
    with interrupted, pytest.raises(KeyboardInterrupt):
        scaler.unscale_and_clip_(optimizer, max_norm=1.0)
    param.grad.fill_(4.0)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert not scaler.last_step.skipped
    assert param.item() == 0.0  # lr 1, a gradient of 4 over a scale of 4


def test_a_float64_gradient_beyond_float32_is_no_overflow_at_any_scale():
    for init_scale in (4.0, 0.5):
        for fused in (False, True):
            scaler = GradScaler("cpu", init_scale=init_scale)
            param, optimizer = an_optimizer(0.0, dtype=torch.float64, fused=fused)
            scaler.scale(torch.tensor(1.0))
            param.grad = torch.tensor([1e300], dtype=torch.float64)
            scaler.step(optimizer)
            assert param.item() == -1e300 / init_scale


def clean_update(scaler, param, optimizer):
    scaler.scale(torch.tensor(1.0))
    param.grad = torch.ones(1)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("kind", [HostVersion, DeviceVersion])
@pytest.mark.parametrize("lower", ["set", "load"])
@pytest.mark.parametrize("interval", [1, 3, 5])
@pytest.mark.parametrize("max_scale", [None, 6.0])
def test_an_interval_lowered_below_the_streak_does_not_stop_growth(interval, lower, kind, max_scale, monkeypatch):
    monkeypatch.setattr(config, "version_class", lambda *_, **__: kind)
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=2**40, max_scale=max_scale)
    param, optimizer = an_optimizer(0.0)
    for _ in range(5):
        clean_update(scaler, param, optimizer)
    assert (scaler.get_scale(), scaler._get_growth_tracker()) == (4.0, 5)
    if lower == "set":
        scaler.set_growth_interval(interval)
    else:
        scaler.load_state_dict(scaler.state_dict() | {"growth_interval": interval})
    clean_update(scaler, param, optimizer)
    assert (scaler.get_scale(), scaler._get_growth_tracker()) == (max_scale or 8.0, 0)


# --------------------------------------------------------------------------------------------------- policies


def overflow(scaler, param, optimizer):
    scaler.scale(torch.tensor(1.0))
    param.grad = torch.tensor([INF])
    scaler.step(optimizer)
    scaler.update()


def test_raise_raises_at_the_floor_and_changes_nothing():
    scaler = GradScaler("cpu", init_scale=4.0, min_scale=2.0, at_min_scale="raise")
    param, optimizer = an_optimizer(0.0)
    overflow(scaler, param, optimizer)
    text = r"overflow at scale 2\.0, which is min_scale: .* lower the learning rate"
    with pytest.raises(FloatingPointError, match=text):
        overflow(scaler, param, optimizer)
    with pytest.raises(FloatingPointError, match=text):
        scaler.update()  # again, because nothing has changed
    scaler.update(8.0)  # the cure
    assert scaler.get_scale() == 8.0


def test_one_optimizer_of_two_that_overflows_at_the_floor_raises():
    scaler = GradScaler("cpu", init_scale=2.0, min_scale=2.0, at_min_scale="raise")
    scaler.scale(torch.tensor(1.0))
    for grad in (1.0, INF, 1.0):
        param, optimizer = an_optimizer(0.0)
        param.grad = torch.tensor([grad])
        scaler.step(optimizer)
    with pytest.raises(FloatingPointError, match=r"overflow at scale 2\.0"):
        scaler.update()


@pytest.mark.parametrize("max_scale", [INF, 1e39])
def test_no_scale_is_beyond_the_largest_that_float32_has(max_scale):
    scaler = GradScaler("cpu", max_scale=max_scale)
    scaler.scale(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"^new_scale=inf: expected .* = \[1\.17.*e-38, 3\.40.*e\+38\]"):
        scaler.update(INF)


def test_a_new_scale_on_a_device_is_taken_by_value():
    options = GradScaler("cpu")._options
    given = torch.zeros((), device="meta")
    taken = config.new_scale_by_value(given, "meta", Rule(), options)
    assert taken.untyped_storage()._cdata != given.untyped_storage()._cdata


def test_warn_warns_at_the_floor_each_time_and_clamps():
    scaler = GradScaler("cpu", init_scale=4.0, min_scale=2.0, at_min_scale="warn")
    param, optimizer = an_optimizer(0.0)
    overflow(scaler, param, optimizer)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="overflow at scale 2.0"):
            overflow(scaler, param, optimizer)
    assert scaler.get_scale() == 2.0


def test_clamp_says_nothing_and_raise_says_nothing_above_the_floor():
    for choice, times in (("clamp", 5), ("raise", 2)):
        scaler = GradScaler("cpu", init_scale=8.0, min_scale=2.0, at_min_scale=choice)
        param, optimizer = an_optimizer(0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(times):
                overflow(scaler, param, optimizer)
        assert scaler.get_scale() == 2.0
        scaler.scale(torch.tensor(1.0))
        param.grad = torch.ones(1)
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"at_min_scale": "stay"}, "at_min_scale='stay': expected one of 'clamp', 'warn', 'raise'"),
        ({"at_min_scale": "warn", "exact_torch": True}, "at_min_scale='warn' with exact_torch=True: expected one"),
        ({"depth": -1}, "depth=-1: expected at least 0; to run synchronously as torch does pass depth=0"),
        ({"depth": 1.0}, "depth=1.0 is a float: expected a whole number"),
        ({"min_scale": 0.0}, "min_scale=0.0: expected at least 2.0\\*\\*-126"),
        ({"min_scale": 2.0**-127}, "min_scale=5.8[0-9]*e-39: expected at least 2.0\\*\\*-126"),
        ({"at_min_scale": "raise", "exact_torch": True}, "at_min_scale='raise' with exact_torch=True: expected one"),
        ({"policy": Probe(), "capturable": True}, r"policy= with \(65536.0, .*, True\): expected the defaults of"),
        ({"min_scale": 4.0, "max_scale": 2.0}, "min_scale=4.0 > max_scale=2.0"),
        ({"max_scale": 2.0}, "init_scale=65536.0: expected within .min_scale, max_scale."),
        ({"min_scale": True}, "min_scale=True is a bool: expected a real number"),
        ({"growth_factor": 1.0}, "The growth factor must be > 1.0."),
        ({"backoff_factor": 1.0}, "The backoff factor must be < 1.0."),
    ],
)
def test_refusals_at_construction_name_value_expectation_and_cure(options, error):
    with pytest.raises((ValueError, TypeError, AssertionError), match=error):
        GradScaler("cpu", **options)


def test_bounds_hold_as_float32_holds_them():
    # 0.7 is 0.69999999 in float32: a bound compared as a double would refuse what the scaler itself saved
    scaler = GradScaler("cpu", init_scale=0.9, min_scale=0.7, max_scale=0.9)
    scaler.scale(torch.tensor(1.0))
    assert scaler.get_scale() == torch.tensor(0.9).item() != 0.9
    scaler.load_state_dict(scaler.state_dict())
    scaler.update(0.7)
    scaler.update(0.9)
    assert scaler.get_scale() == torch.tensor(0.9).item()
    scaler.load_state_dict(scaler.state_dict())


def cudas_check(grads, found_inf, inverse) -> None:
    """Do what torch's kernel does on CUDA: it looks at each gradient as a float32 (AmpKernels.cu)."""
    if not all(grad.float().isfinite().all() for grad in grads):
        found_inf.fill_(1.0)
    torch._foreach_mul_(grads, inverse)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("scale", [2.0, 0.5])
def test_float64_is_not_left_to_a_kernel_that_rounds_it(fused, scale, monkeypatch) -> None:
    monkeypatch.setattr(torch, "_amp_foreach_non_finite_check_and_unscale_", cudas_check)
    monkeypatch.setattr(unscale, "EXACT_CHECK", set())  # the CPU stands for CUDA
    for unscales in (False, True):
        param, optimizer = an_optimizer(0.0, dtype=torch.float64, fused=fused)
        scaler = GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.zeros(()))
        param.grad = torch.tensor([1e300], dtype=torch.float64)
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        assert not scaler.last_step.skipped
        assert param.item() == -1e300 / scale


def test_get_scale_copies_one_number(monkeypatch) -> None:
    """Each copy from a device is a wait for it."""
    version = next(iter(DeviceVersion.start((State(8.0, 3),), Rule(), CPU)))
    copied, item = [], torch.Tensor.item
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: copied.append(tensor) or item(tensor))
    assert (version.number(), len(copied)) == (8.0, 1)
    assert (version.read(), len(copied)) == (State(8.0, 3), 3)


def test_a_state_that_a_kernel_has_made_is_of_one_version_one_rule_and_its_flags_alone() -> None:
    (version, other), rule = DeviceVersion.start((State(8.0), State(4.0)), Rule(), CPU), Rule()
    flag = torch.zeros(())
    made = Successor(version, rule, flag, (torch.ones(()), torch.zeros(())))
    fits = [made.fits(version, rule, flags) for flags in ([flag], [flag, flag], [flag, torch.zeros(())])]
    assert fits == [True, True, False]
    assert not made.fits(other, rule, [flag])
    assert not made.fits(version, rule.replace(growth_interval=5), [flag])
