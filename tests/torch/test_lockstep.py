"""torch.amp.GradScaler against the reference state machine, and torch's defects, each by name."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim.core import machine
from ampsim.core.machine import Rule
from tests.examples import examples

INF = math.inf
CALLS = st.lists(
    st.booleans() | st.sampled_from([8.0, 0.1, 2.0**127, 2.0**-149, 0.0]), max_size=30
)


class Training:
    """A scaler with one parameter per optimizer; each parameter moves by minus its gradient."""

    def __init__(self, *kinds, scale=2.0**16, interval=2000, **constants):
        self.scaler = torch.amp.GradScaler(
            "cpu", scale, growth_interval=interval, **constants
        )
        self.params = [torch.nn.Parameter(torch.zeros(3)) for _ in kinds]
        self.optimizers = [
            torch.optim.SGD([param], lr=1.0, fused="fused" in kind)
            for param, kind in zip(self.params, kinds, strict=True)
        ]
        self.scaler.scale(torch.ones(()))

    def give(self, i, *values):
        self.params[i].grad = torch.tensor([*values, 1.0, 1.0][:3])

    def found_inf(self, i, value):
        """Write what an all-reduce over ranks might leave."""
        state = self.scaler._per_optimizer_states[id(self.optimizers[i])]
        state["found_inf_per_device"][torch.device("cpu")].fill_(value)

    def step(self, i, *values):
        self.give(i, *values)
        self.scaler.step(self.optimizers[i])
        return self.params[i][0].item()

    def iterate(self, times):
        for _ in range(times):
            self.step(0, 1.0)
            self.scaler.update()


@settings(max_examples=examples(ms=5, least=200))
@given(
    constants=st.tuples(
        st.sampled_from([2.0**16, 0.1, 1700.0, 2.0**127, 2.0**-148]),
        st.sampled_from([2.0, 3.0, 1.1, 1.0000000001]),
        st.sampled_from([0.5, 0.7, 0.1, 2.0**-64]),
        st.sampled_from([1, 2, 3]),
    ),
    calls=CALLS,
)
def test_torch_matches_the_machine(constants, calls):
    rule = Rule(*constants)
    state, scaler = machine.init(rule), torch.amp.GradScaler("cpu", *constants)
    param = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([param], lr=0.0)
    scaler.scale(torch.ones(()))
    for call in calls:
        param.grad = torch.tensor(INF if call is True else 0.0)
        scaler.unscale_(optimizer)
        if isinstance(call, bool):
            scaler.update()
            state = machine.update(rule, state, call)
        else:
            scaler.update(call)
            state = machine.override(rule, state, call)
        shown = scaler.get_scale(), scaler._get_growth_tracker()
        assert shown == (state.scale, state.growth_tracker)


# ------------------------------------------------------------------- parameters that torch corrupts


def test_torch_steps_with_inf_without_reciprocal():
    training = Training("sgd", scale=2.0**-128)  # float32(1 / 2^-128) is inf
    assert training.step(0, 2.0**-128) == -INF
    training.scaler.update()
    assert training.scaler._get_growth_tracker() == 1  # counted as a finite step


def test_torch_never_leaves_scale_zero():
    training = Training("sgd", interval=1)
    training.scaler.update(0.0)
    assert training.step(0, 1.0) == -INF
    training.scaler.update()
    assert training.scaler.get_scale() == 0.0


def test_torch_overflows_below_scale_1():
    assert Training("sgd", scale=0.5).step(0, 3e38) == -INF


@pytest.mark.parametrize("found_inf", [2.0, 0.5, -1.0, 1e-45, math.nan])
def test_torch_fused_kernel_compares_with_1(found_inf):
    training = Training("fused")
    training.give(0, INF)
    training.scaler.unscale_(training.optimizers[0])
    training.found_inf(0, found_inf)  # the sum over two ranks is 2, the mean is 0.5
    training.scaler.step(training.optimizers[0])
    training.scaler.update()
    assert training.params[0][0] == -INF
    assert training.scaler.get_scale() == 2.0**15


def test_torch_failed_update_corrupts_found_inf():
    training = Training("fused", "sgd")
    for i in range(2):
        training.give(i, INF)
        training.scaler.unscale_(training.optimizers[i])
    training.scaler.set_growth_interval(2.0)
    with pytest.raises(
        TypeError
    ):  # after 1 + 1 was written into the first optimizer's found_inf
        training.scaler.update()
    training.scaler.step(training.optimizers[0])
    assert training.params[0][0] == -INF


def test_torch_misses_overflow_on_cancelled_flags():
    training = Training("sgd", "sgd")
    for i in range(2):
        training.give(i, INF)
        training.scaler.unscale_(training.optimizers[i])
    training.found_inf(0, -1.0)
    training.scaler.update()
    assert training.scaler.get_scale() == 2.0**16


def test_torch_failed_fused_step_divides_twice():
    training = Training("fused", scale=4.0)
    training.give(0, 1.0)
    with pytest.raises(TypeError):
        training.scaler.step(training.optimizers[0], nonsense=1)
    assert training.step(0, 1.0) == -1 / 16


def test_torch_fused_sgd_uses_uninitialized_momentum(
    monkeypatch,
):
    # _fused_sgd allocates the buffer with empty_like, the kernel skips, and the next step is not
    # the first
    empty_like = torch.empty_like
    monkeypatch.setattr(
        torch,
        "empty_like",
        lambda *args, **kwargs: empty_like(*args, **kwargs).fill_(777.0),
    )
    param = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([param], lr=0.5, momentum=0.5, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for value in (INF, 0.0):
        scaler.scale(torch.tensor(1.0))
        param.grad = torch.full((3,), value)
        scaler.step(optimizer)
        scaler.update()
    assert (
        param.tolist() == [-0.5 * 0.5 * 777.0] * 3
    )  # every gradient that it was ever stepped with was 0


# ------------------------------------------------------------------ growth, override, and the graph


def test_torch_never_grows_past_shortened_interval():
    training = Training("sgd", interval=9)
    training.iterate(5)
    training.scaler.set_growth_interval(3)
    training.iterate(20)
    assert training.scaler._get_growth_tracker() == 25
    assert training.scaler.get_scale() == 2.0**16


def test_torch_doubles_new_scale_next_step():
    training = Training("sgd", interval=2)
    training.iterate(1)
    training.scaler.update(8.0)
    training.iterate(1)
    assert training.scaler.get_scale() == 16.0


def test_torch_update_before_backward_breaks_it():
    # the scale is saved for backward and then changed in place
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([param], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    loss = scaler.scale(param.sum())
    param.grad = torch.ones(3)
    scaler.step(optimizer)
    scaler.update()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
