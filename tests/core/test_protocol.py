"""The protocol without torch: stages, refusals and what they leave, and the arithmetic of gradients."""

import math

import numpy as np
import pytest

from ampsim.core.machine import Rule, round_to_float32
from ampsim.core.torch_model import protocol, refusals, state_dict
from ampsim.core.torch_model.protocol import Optimizer, Protocol, Stage, Tensor

ONE = np.ones((), np.float32)
CLEAN = (np.float32([4.0, 8.0]), None)
OVERFLOW = (np.float32([4.0, np.inf]), None)


def begun(scale=4.0, **constants):
    """A scaler whose scale exists."""
    p, outcome = protocol.scale(protocol.create(Rule.unchecked(init_scale=scale, **constants)), ONE)
    assert outcome.refusal is None
    return p


def values(optimizer):
    return [None if g is None else g.tolist() for g in optimizer.grads]


def refused(result, before, refusal):
    """The event was refused and changed nothing."""
    after, outcome = result
    assert outcome.refusal == refusal
    assert after == before


def test_first_scale_call_creates_rounded_scale():
    p = protocol.create(Rule(init_scale=0.1))
    assert state_dict.get_scale(p) == 0.1
    p, outcome = protocol.scale(p, np.array(2.0, np.float32))
    assert p.exists
    assert state_dict.get_scale(p) == float(np.float32(0.1))
    assert outcome.value == np.float32(0.2)


def test_finite_iteration_unscales_steps_and_counts():
    p, outcome = protocol.step(begun(), Optimizer("a", CLEAN), returns="loss")
    assert (outcome.value, outcome.called, outcome.stepped) == ("loss", True, True)
    assert values(outcome.optimizer) == [[1.0, 2.0], None]
    assert p.record("a").stage is Stage.STEPPED
    p, _ = protocol.update(p)
    assert (p.state.scale, p.state.growth_tracker, p.records) == (4.0, 1, ())


def test_overflow_unscales_skips_and_backs_off():
    p, outcome = protocol.step(begun(), Optimizer("a", OVERFLOW), returns="loss")
    assert (outcome.value, outcome.called, outcome.stepped) == (None, False, False)
    assert values(outcome.optimizer) == [[1.0, math.inf], None]
    assert protocol.update(p)[0].state.scale == 2.0


def test_skip_is_per_optimizer_backoff_global():
    p, first = protocol.step(begun(), Optimizer("a", OVERFLOW))
    p, second = protocol.step(p, Optimizer("b", CLEAN))
    p, third = protocol.step(p, Optimizer("c", OVERFLOW))
    assert [o.stepped for o in (first, second, third)] == [False, True, False]
    assert protocol.update(p)[0].state.scale == 2.0


def test_fused_step_unscales_in_kernel():
    p, outcome = protocol.step(begun(), Optimizer("a", CLEAN, fused=True))
    assert outcome.kernel == (4.0, 0.0)
    assert values(outcome.optimizer) == [[1.0, 2.0], None]
    p, outcome = protocol.step(p, Optimizer("b", OVERFLOW, fused=True), returns="loss")
    assert (outcome.value, outcome.called, outcome.stepped) == ("loss", True, False)
    assert values(outcome.optimizer) == [[4.0, math.inf], None]  # untouched


@pytest.mark.parametrize(
    ("found", "overflows"),
    [
        ((0.0, 0.0), False),
        ((0.0, 1.0), True),
        ((1e-45, 0.0), True),
        ((math.nan, 0.0), True),
        ((-1.0, 1.0), False),
    ],
)
def test_found_inf_is_summed_in_float32(found, overflows):
    p = begun()
    for key, value in zip("ab", found, strict=True):
        p = p.note(key, found_inf=round_to_float32(value))
    assert protocol.update(p)[0].state.scale == (2.0 if overflows else 4.0)


@pytest.mark.parametrize("event", ["unscale_", "step", "update"])
def test_calls_before_scale_raise(event):
    p = Protocol()
    arguments = () if event == "update" else (Optimizer("a", CLEAN),)
    after, outcome = getattr(protocol, event)(p, *arguments)
    assert outcome.refusal.kind is AssertionError
    assert after == p


@pytest.mark.parametrize(
    ("first", "second", "refusal"),
    [
        ("unscale_", "unscale_", refusals.UNSCALED_TWICE),
        ("step", "unscale_", refusals.UNSCALED_LATE),
        ("step", "step", refusals.STEPPED_TWICE),
    ],
)
def test_each_event_happens_once_per_iteration(first, second, refusal):
    p, _ = getattr(protocol, first)(begun(), Optimizer("a", CLEAN))
    refused(getattr(protocol, second)(p, Optimizer("a", CLEAN)), p, refusal)
    assert getattr(protocol, second)(p, Optimizer("b", CLEAN))[1].refusal is None


def test_closure_keyword_raises_and_changes_nothing():
    p = begun()
    refused(protocol.step(p, Optimizer("a", CLEAN), closure=True), p, refusals.CLOSURE)


def test_step_without_gradients_raises():
    p, outcome = protocol.step(begun(), Optimizer("a", (None,)))
    assert outcome.refusal == refusals.NOTHING_CHECKED
    assert p.record("a") == protocol.Record(Stage.UNSCALED, None)
    refused(protocol.update(p), p, refusals.NOTHING_CHECKED_AT_ALL)


@pytest.mark.parametrize(
    "new_scale",
    [
        8,
        "8",
        np.float32(8),
        1e39,
        Tensor(8.0, (2,)),
        Tensor(8.0, device="meta"),
        Tensor(8.0, (1, 1)),
    ],
)
def test_invalid_new_scale_changes_nothing(new_scale):
    p, _ = protocol.unscale_(begun(), Optimizer("a", CLEAN))
    after, outcome = protocol.update(p, new_scale)
    assert outcome.refusal is not None
    assert after == p


@pytest.mark.parametrize("target", [Protocol(), begun()])
def test_a_state_dict_round_trip(target):
    source = state_dict.state_dict(state_dict.put(begun(8.0), "growth_interval", 7))
    loaded, outcome = state_dict.load_state_dict(target, {**source, "_growth_tracker": 3})
    assert outcome.refusal is None
    assert state_dict.state_dict(loaded) == {**source, "_growth_tracker": 3}


def test_invalid_state_dict_changes_nothing():
    p = begun()
    refused(state_dict.load_state_dict(p, {}), p, refusals.EMPTY_STATE_DICT)
    refused(state_dict.load_state_dict(p, {"scale": 1e39}), p, refusals.overflow(1e39))


def test_disabled_scaler_changes_nothing():
    p = protocol.create(Rule(), enabled=False)
    optimizer = Optimizer("a", OVERFLOW)
    assert protocol.scale(p, "anything")[1].value == "anything"
    assert protocol.unscale_(p, optimizer)[1].optimizer is optimizer
    stepped = protocol.step(p, optimizer, closure=True, returns=5.0)[1]
    assert (stepped.value, stepped.stepped, stepped.optimizer) == (5.0, True, optimizer)
    assert (state_dict.get_scale(p), state_dict.state_dict(p)) == (1.0, {})
