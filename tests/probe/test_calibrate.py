"""The scale that `calibrate` finds does not overflow, its double would; `bisect` names the modules at fault."""

from functools import partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from ampsim.probe import bisect, calibrate
from tests.examples import examples


def autocast():
    return torch.autocast("cpu", torch.float16)


class Network(nn.Module):
    def __init__(self, gain=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.drop, self.gain = nn.Dropout(0.5), gain

    def forward(self, x):
        return self.last(self.drop(self.norm(self.first(x)).relu())) * self.gain

    def loss(self):
        with autocast():
            return self(torch.linspace(-1, 1, 32).reshape(8, 4)).float().square().mean()


@settings(max_examples=examples(ms=20))
@given(st.integers(-12, 12), st.integers(0, 3))
@example(0, 1)
def test_the_ceiling_is_where_fp16_overflows(gain, headroom):
    model = Network(2.0**gain)
    found = calibrate(model, model.loss, headroom=headroom)
    assert found.init_scale * 2**headroom == found.ceiling

    def finite(scale):
        torch.manual_seed(0)
        model.zero_grad()
        state = torch.random.get_rng_state()
        (model.loss() * scale).backward()
        torch.random.set_rng_state(state)
        return all(param.grad.isfinite().all() for param in model.parameters())

    torch.manual_seed(0)
    again = calibrate(model, model.loss, headroom=headroom)
    assert finite(again.ceiling)
    assert not finite(again.ceiling * 4)


def test_what_is_lost_is_told_of_the_scale_to_begin_with():
    model = Network()
    near, far = (calibrate(model, model.loss, headroom=headroom) for headroom in (0, 24))
    assert near.ceiling == far.ceiling
    assert near.lost.flushed.high < far.lost.flushed.low


@pytest.mark.parametrize("function", [calibrate, bisect])
def test_nothing_is_left_behind(function):
    model = Network()
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.random.get_rng_state()
    function(model, model.loss)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(param.grad.eq(1).all() for param in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), random)
    assert "forward" not in vars(model.first)


def test_a_loss_that_fails_leaves_nothing_behind():
    model = Network()

    def loss():
        model.loss().backward()
        raise ArithmeticError

    grads = [torch.ones_like(param) for param in model.parameters()]
    for param, grad in zip(model.parameters(), grads, strict=True):
        param.grad = grad
    mean = model.norm.running_mean.clone()
    for function in (calibrate, bisect):
        with pytest.raises(ArithmeticError):
            function(model, loss)
        assert all(param.grad is grad for param, grad in zip(model.parameters(), grads, strict=True))
        assert all(grad.eq(1).all() for grad in grads)
        assert torch.equal(model.norm.running_mean, mean)


def test_gradients_of_zero_fit_at_the_largest_scale_that_has_a_reciprocal():
    model = nn.Linear(4, 1)
    found = calibrate(model, lambda: 0.0 * model(torch.ones(1, 4)).sum(), headroom=0)
    assert (found.init_scale, found.ceiling, found.passes) == (2.0**126, 2.0**126, 2)
    found = calibrate(model, lambda: 1e6 * model(torch.ones(1, 4)).sum())
    assert (found.init_scale, found.ceiling, found.passes) == (2.0**-5, 2.0**-4, 2)


def test_a_forward_that_overflows_is_said():
    model = Network(1e9)
    model.loss = lambda: model(torch.full((8, 4), 1e30)).square().mean() * float("inf")
    scales = "65536, 1, 1.52588e-05, 2.32831e-10"
    with pytest.raises(
        ValueError, match=f"^gradients are not finite at scales {scales}: .* the forward pass overflows"
    ):
        calibrate(model, model.loss)
    with pytest.raises(ValueError, match="although the whole model ran in float32"):
        bisect(model, model.loss)


def test_what_is_no_loss_is_refused():
    model = Network()
    with pytest.raises(TypeError, match=r"^loss\(\) returned 3\.0: expected a tensor with one element"):
        calibrate(model, lambda: 3.0)
    with pytest.raises(ValueError, match="no parameter got a gradient"):
        calibrate(model, lambda: torch.ones((), requires_grad=True) * 2)
    with pytest.raises(ValueError, match="headroom=-1"):
        calibrate(model, model.loss, headroom=-1)


class Loud(nn.Module):
    """A module that overflows in float16 by an operation of its own."""

    def __init__(self, loud):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))
        self.loud = loud

    def forward(self, x):
        return (x @ (self.weight * (1e5 if self.loud else 1.0))) / (1e5 if self.loud else 1.0)


@given(st.sets(st.integers(0, 6)), st.booleans())
@settings(max_examples=examples(ms=50))
@example({2, 5}, True)
@example(set(), False)
def test_the_modules_at_fault_are_named_and_no_others(at_fault, nested):
    blocks = [Loud(number in at_fault) for number in range(7)]
    model = nn.Sequential(nn.Sequential(*blocks[:3]), nn.Sequential(*blocks[3:])) if nested else nn.Sequential(*blocks)

    def loss():
        with autocast():
            return model(torch.ones(2, 4)).float().mean()

    names = {
        number: f"{int(number >= 3)}.{number - 3 * (number >= 3)}" if nested else str(number) for number in range(7)
    }
    assert set(bisect(model, loss)) == {names[number] for number in at_fault}


def test_modules_are_named_in_the_order_of_the_model():
    model = nn.Sequential(*(Loud(number in (2, 10)) for number in range(11)))

    def loss():
        with autocast():
            return model(torch.ones(2, 4)).float().mean()

    assert bisect(model, loss) == ["2", "10"]


def test_a_module_that_is_given_no_tensor_runs_in_float32_too():
    class Source(Loud):
        def forward(self):
            return super().forward(torch.ones(2, 4))

    model = Source(loud=True)

    def loss():
        with autocast():
            return model().float().mean()

    assert bisect(model, loss) == [""]


def test_a_module_whose_own_forward_overflows_is_named_though_it_has_children():
    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = nn.Linear(4, 4)

        def forward(self, x):
            return (self.child(x) @ torch.full((4, 4), 1e5)) / 1e5

    model = nn.Sequential(nn.Linear(4, 4), Parent())
    model[0].forward = own = partial(nn.Linear.forward, model[0])  # as whoever patches a module leaves it

    def loss():
        with autocast():
            return model(torch.ones(2, 4)).float().mean()

    assert bisect(model, loss) == ["1"]
    assert model[0].forward is own
    assert not any("forward" in vars(module) for module in (model, model[1], model[1].child))
