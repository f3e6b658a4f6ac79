"""The scale that `calibrate` finds does not overflow, its double would; `find_fp32_modules` names
the modules at fault.
"""

import math
from functools import partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from ampsim.core.formats import E4M3
from ampsim.probe import calibrate, find_fp32_modules
from tests.examples import examples


def autocast():
    return torch.autocast("cpu", torch.float16)


class Network(nn.Module):
    def __init__(self, gain=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = (
            nn.Linear(4, 8),
            nn.BatchNorm1d(8),
            nn.Linear(8, 1),
        )
        self.drop, self.gain = nn.Dropout(0.5), gain

    def forward(self, x):
        return self.last(self.drop(self.norm(self.first(x)).relu())) * self.gain

    def loss(self):
        with autocast():
            return self(torch.linspace(-1, 1, 32).reshape(8, 4)).float().square().mean()


@settings(max_examples=examples(ms=20))
@given(st.integers(-12, 12), st.integers(0, 3))
@example(0, 1)
def test_threshold_is_where_fp16_overflows(gain, headroom):
    model = Network(2.0**gain)
    torch.manual_seed(0)
    found = calibrate(model, model.loss, headroom=headroom)
    assert found.init_scale * 2**headroom == found.threshold
    for scale, finite in ((found.threshold, True), (found.threshold * 4, False)):
        torch.manual_seed(0)
        model.zero_grad()
        (model.loss() * scale).backward()
        assert (
            all(param.grad.isfinite().all() for param in model.parameters()) == finite
        )


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("function", [calibrate, find_fp32_modules])
def test_model_state_is_restored(function, fails):
    model = Network()
    grads = [torch.ones_like(param) for param in model.parameters()]
    for param, grad in zip(model.parameters(), grads, strict=True):
        param.grad = grad
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.random.get_rng_state()

    def failing():
        model.loss().backward()
        raise ArithmeticError

    if fails:
        with pytest.raises(ArithmeticError):
            function(model, failing)
    else:
        function(model, model.loss)
    assert all(
        torch.equal(value, before[name]) for name, value in model.state_dict().items()
    )
    for param, grad in zip(model.parameters(), grads, strict=True):
        assert param.grad is grad
        assert grad.eq(1).all()
    assert torch.equal(torch.random.get_rng_state(), random)
    assert "forward" not in vars(model.first)


def test_threshold_of_known_gradients():
    model = nn.Linear(4, 1)
    found = calibrate(model, lambda: 0.0 * model(torch.ones(1, 4)).sum(), headroom=0)
    assert (found.init_scale, found.threshold) == (
        2.0**126,
        2.0**126,
    )  # the last with a reciprocal
    found = calibrate(model, lambda: 1e6 * model(torch.ones(1, 4)).sum())
    # float16 rounds from 65520 to inf: 1e6 / 2^4 = 62500 fits
    assert (found.init_scale, found.threshold) == (2.0**-5, 2.0**-4)
    x = torch.tensor(
        [[1.0, 1.0, 1.0, 7e-13]]
    )  # 7e-7 / 2^4 is above 2^-25, 7e-7 / 2^5 below
    found = calibrate(model, lambda: 1e6 * model(x).sum())
    assert ([*found.lost], found.passes) == ([(0.2, 0.2), (0.0, 0.0), (0.0, 0.0)], 2)
    assert (
        calibrate(model, lambda: 1e6 * model(x).sum(), headroom=0, fmt=E4M3).init_scale
        == 2.0**-12
    )
    model = nn.Linear(4, 1, bias=False)
    small = torch.full(
        (1, 4), 1e-3
    )  # the weights' gradients are 1e3, that of the output 1e6
    assert calibrate(model, lambda: 1e6 * model(small).sum()).threshold == 2.0**-4


def test_smallest_scale_is_tested():
    model = nn.Linear(4, 1)

    def loss():
        with autocast():
            return 1e10 * model(torch.ones(1, 4)).float().sum()

    assert (
        calibrate(model, loss).threshold == 2.0**-18
    )  # at 2^-16 1e10 is inf in float16


def test_overflow_only_when_scaled_counts():
    model, batch = nn.Linear(4, 1), torch.ones(2, 4)

    def loss():
        with autocast():
            return model(batch).float().mean()

    assert find_fp32_modules(model, loss) == []
    assert find_fp32_modules(model, loss, scale=2.0**20) == [""]


def test_forward_overflow_raises():
    model = Network(1e9)
    for function in (calibrate, find_fp32_modules):
        with pytest.raises(ValueError, match=r"float32|forward pass overflows"):
            function(
                model,
                lambda: model(torch.full((8, 4), 1e30)).square().mean() * math.inf,
            )


def test_infinite_loss_with_finite_gradients_raises():
    model = nn.Linear(4, 1)
    with pytest.raises(ValueError, match="loss or gradients are not finite"):
        calibrate(model, lambda: model(torch.ones(1, 4)).sum() + math.inf)


def test_invalid_loss_raises():
    model = Network()
    for value in (3.0, torch.full((2,), 3.0, requires_grad=True)):
        with pytest.raises(TypeError, match=r"3\."):
            calibrate(model, lambda value=value: value)
    with pytest.raises(ValueError, match="no parameter got a gradient"):
        calibrate(model, lambda: torch.ones((), requires_grad=True) * 2)
    with pytest.raises(ValueError, match="headroom=-1"):
        calibrate(model, model.loss, headroom=-1)


class Loud(nn.Module):
    """A module that overflows in float16 by an operation of its own."""

    def __init__(self, loud):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))
        self.gain = 1e5 if loud else 1.0

    def forward(self, x):
        return (x @ (self.weight * self.gain)) / self.gain


def at_fault(model, *inputs):
    def loss():
        with autocast():
            return model(*inputs).float().mean()

    return find_fp32_modules(model, loss)


@given(st.sets(st.integers(0, 11)), st.booleans())
@settings(max_examples=examples(ms=50))
@example({2, 5}, True)
@example({2, 10}, False)  # in the order of the model, not of the names
@example(set(), False)
def test_overflowing_modules_are_found(wrong, nested):
    blocks = [Loud(number in wrong) for number in range(12)]
    names = [str(number) for number in sorted(wrong)]
    model = nn.Sequential(*blocks)
    if nested:
        model = nn.Sequential(nn.Sequential(*blocks[:3]), nn.Sequential(*blocks[3:]))
        names = [f"0.{i}" if i < 3 else f"1.{i - 3}" for i in sorted(wrong)]
    assert at_fault(model, torch.ones(2, 4)) == names


def test_module_without_inputs_is_found():
    class Source(Loud):
        def forward(self):
            return super().forward(torch.ones(2, 4))

    assert at_fault(Source(loud=True)) == [""]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_keyword_inputs_are_widened(dtype):
    model = Loud(loud=True)

    def loss():
        with autocast():
            return model(x=torch.ones(2, 4, dtype=dtype)).float().mean()

    assert find_fp32_modules(model, loss) == [""]


def test_parent_forward_overflow_is_found():
    class Parent(Loud):
        def __init__(self):
            super().__init__(loud=True)
            self.child = nn.Linear(4, 4)

        def forward(self, x):
            return super().forward(self.child(x))

    model = nn.Sequential(nn.Linear(4, 4), Parent())
    model[0].forward = own = partial(
        nn.Linear.forward, model[0]
    )  # somebody else's patch
    assert at_fault(model, torch.ones(2, 4)) == ["1"]
    assert model[0].forward is own
    assert not any(
        "forward" in vars(module) for module in (model, model[1], model[1].child)
    )
