"""torch.amp.GradScaler and the pure protocol agree on everything; torch's defects, each by name.

A named test drives the same machine by hand, so the model is held to the defect as much as torch is. When
the two disagree, torch's run is right and the model is to be fixed.
"""

import math

import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from ampsim.core.machine import Rule
from ampsim.core.torch_model import protocol
from tests.examples import examples
from tests.torch import lockstep


@pytest.fixture
def drive():
    """Makes a machine with one optimizer per kind, its scale made; every call on it compares everything."""

    def make(
        *kinds, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000, layout="float32", begins=True
    ):
        machine = lockstep.Lockstep()
        machine.begin(
            (scale, growth, backoff, interval), True, [(kind, layout) for kind in kinds], begins
        )
        return machine

    return make


def put_gradients(machine, i, value, kind="clean", bad=math.inf):
    machine.set_gradients(i, (kind, value, value, bad, 0))


def step(machine, i, value, kind="clean", bad=math.inf):
    """One optimizer's step with new gradients."""
    put_gradients(machine, i, value, kind, bad)
    machine.step(i, "plain")


def gradient(machine, i=0):
    return machine.sides[i].params[0].grad[0].item()


def parameter(machine, i=0):
    return machine.sides[i].params[0][0].item()


@pytest.mark.parametrize(
    ("machine", "least"), [(lockstep.Lockstep, 200), (lockstep.RareEvents, 50)]
)
def test_protocol_matches_torch(machine, least):
    run_state_machine_as_test(machine, settings=settings(max_examples=examples(ms=28, least=least)))


# ----------------------------------------------------------------------------- parameters that torch corrupts


def test_torch_steps_with_inf_without_reciprocal(drive):
    machine = drive("sgd", scale=2.0**-128)  # float32(1 / 2^-128) is inf
    step(machine, 0, 2.0**-128)
    machine.update()
    assert gradient(machine) == math.inf
    assert parameter(machine) == -math.inf
    assert machine.scaler._get_growth_tracker() == 1  # counted as a clean step


def test_torch_never_leaves_scale_zero(drive):
    machine = drive("sgd", interval=1)
    machine.update_by_hand(0.0)
    step(machine, 0, 1.0)
    machine.update()
    assert machine.scaler.get_scale() == 0.0
    assert parameter(machine) == -math.inf


def test_torch_overflows_below_scale_1(drive):
    machine = drive("sgd", scale=0.5)
    step(machine, 0, 3e38)
    assert parameter(machine) == -math.inf


@pytest.mark.parametrize("found_inf", [2.0, 0.5, -1.0, 1e-45, math.nan])
def test_torch_fused_kernel_compares_with_1(drive, found_inf):
    machine = drive("adamw, fused")
    put_gradients(machine, 0, 1.0, "overflow")
    machine.unscale(0)
    machine.write_found_inf(0, found_inf)  # the sum over two ranks is 2, the mean is 0.5
    machine.step(0, "plain")
    machine.update()
    assert math.isnan(parameter(machine))
    assert machine.scaler.get_scale() == 2.0**15


def test_torch_failed_update_corrupts_found_inf(drive):
    machine = drive("sgd, fused", "sgd")
    put_gradients(machine, 0, 1.0, "overflow")
    put_gradients(machine, 1, 1.0, "overflow")
    machine.unscale(0)
    machine.unscale(1)
    machine.put(("growth_interval", 2.0))
    machine.update()  # TypeError, after 1 + 1 was written into the first optimizer's found_inf
    machine.step(0, "plain")
    assert parameter(machine) == -math.inf


def test_torch_misses_overflow_on_cancelled_flags(drive):
    machine = drive("sgd", "sgd")
    for i in range(2):
        put_gradients(machine, i, 1.0, "overflow")
        machine.unscale(i)
    machine.write_found_inf(0, -1.0)
    machine.update()
    assert machine.scaler.get_scale() == 2.0**16


def test_torch_failed_fused_step_divides_twice(drive):
    machine = drive("sgd, fused", scale=4.0)
    put_gradients(machine, 0, 1.0)
    machine.step(0, "nonsense")
    machine.step(0, "plain")
    assert gradient(machine) == 1 / 16


def test_torch_fused_sgd_uses_uninitialized_momentum(
    monkeypatch,
):
    # _fused_sgd allocates the buffer with empty_like, the kernel skips, and the next step is not the first
    empty_like = torch.empty_like
    monkeypatch.setattr(
        torch, "empty_like", lambda *args, **kwargs: empty_like(*args, **kwargs).fill_(777.0)
    )
    param = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([param], lr=0.5, momentum=0.5, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for value in (math.inf, 0.0):
        scaler.scale(torch.tensor(1.0))
        param.grad = torch.full((3,), value)
        scaler.step(optimizer)
        scaler.update()
    assert (
        param.tolist() == [-0.5 * 0.5 * 777.0] * 3
    )  # every gradient that it was ever stepped with was 0


# ---------------------------------------------------------------------------------- growth, streak, override


def test_torch_never_grows_past_shortened_interval(drive):
    machine = drive("sgd", interval=9)
    plan = [("clean", 1.0, 0.0, math.inf, 0)] * 3
    machine.iterate(plan, set(), "clean", 0, 5)
    machine.put(("growth_interval", 3))
    machine.iterate(plan, set(), "clean", 0, 20)
    assert machine.scaler._get_growth_tracker() == 25
    assert machine.scaler.get_scale() == 2.0**16


def test_torch_doubles_new_scale_next_step(drive):
    machine = drive("sgd", interval=2)
    plan = [("clean", 1.0, 0.0, math.inf, 0)] * 3
    machine.iterate(plan, set(), "clean", 0, 1)
    machine.update_by_hand(8.0)
    machine.iterate(plan, set(), "clean", 0, 1)
    assert machine.scaler.get_scale() == 16.0


# ----------------------------------------------------------------------------------- optimizers and gradients


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


# ------------------------------------------------------------------------------------ construction and saving


@pytest.mark.parametrize(
    "constants",
    [
        (1.0,),
        (1.0, 1.0),
        (1.0, 0.5),
        (1.0, math.nan),
        (1.0, 2.0, 1.0),
        (1.0, 2.0, -1.0),
        (math.nan, 2.0, 0.5, 0),
    ],
)
@pytest.mark.parametrize("enabled", [True, False])
def test_constructor_errors_match_torch(constants, enabled):
    names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    rule = Rule.unchecked(**dict(zip(names, constants, strict=False)))
    _, torchs = lockstep.attempt(lambda: torch.amp.GradScaler("cpu", *constants, enabled=enabled))
    _, ours = lockstep.attempt(lambda: protocol.create(rule, enabled=enabled))
    assert torchs == ours
