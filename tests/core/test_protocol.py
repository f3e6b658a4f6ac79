"""The protocol without torch: stages, refusals and what they leave, and the arithmetic of gradients."""

import math
import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from ampsim.core.machine import Rule, State, round_to_float32
from ampsim.core.torch_model import arithmetic, protocol, refusals, state_dict
from ampsim.core.torch_model.protocol import Optimizer, Protocol, Stage, Tensor
from ampsim.core.torch_model.refusals import Refusal

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


def test_the_stages_are_torchs() -> None:
    theirs = pytest.importorskip("torch.amp.grad_scaler").OptState
    assert {stage.name: stage.value for stage in Stage} == {stage.name: stage.value for stage in theirs}


@pytest.mark.parametrize("refusal", [value for value in vars(refusals).values() if isinstance(value, Refusal)])
def test_every_refusal_can_be_raised(refusal) -> None:
    with pytest.raises(refusal.kind, match=re.escape(refusal.text)):
        raise refusal.error()


# -------------------------------------------------------------------------------------------------- iteration


def test_the_scale_is_made_by_the_first_scale_and_rounded_then():
    p = protocol.create(Rule(init_scale=0.1))
    assert state_dict.get_scale(p) == 0.1
    p, outcome = protocol.scale(p, np.array(2.0, np.float32))
    assert p.exists
    assert state_dict.get_scale(p) == float(np.float32(0.1))
    assert outcome.value == np.float32(0.2)


def test_a_clean_iteration_unscales_steps_and_counts():
    p, outcome = protocol.step(begun(), Optimizer("a", CLEAN), returns="loss")
    assert (outcome.value, outcome.called, outcome.stepped) == ("loss", True, True)
    assert values(outcome.optimizer) == [[1.0, 2.0], None]
    assert p.record("a").stage is Stage.STEPPED
    p, _ = protocol.update(p)
    assert (p.state.scale, p.state.growth_tracker, p.records) == (4.0, 1, ())


def test_an_overflow_is_skipped_backs_off_and_is_unscaled_all_the_same():
    p, outcome = protocol.step(begun(), Optimizer("a", OVERFLOW), returns="loss")
    assert (outcome.value, outcome.called, outcome.stepped) == (None, False, False)
    assert values(outcome.optimizer) == [[1.0, math.inf], None]
    assert protocol.update(p)[0].state.scale == 2.0


def test_a_skip_is_per_optimizer_and_the_backoff_is_global():
    p, first = protocol.step(begun(), Optimizer("a", OVERFLOW))
    p, second = protocol.step(p, Optimizer("b", CLEAN))
    p, third = protocol.step(p, Optimizer("c", OVERFLOW))
    assert [o.stepped for o in (first, second, third)] == [False, True, False]
    assert protocol.update(p)[0].state.scale == 2.0


def test_a_fused_step_divides_in_its_kernel_and_is_called_even_when_it_skips():
    p, outcome = protocol.step(begun(), Optimizer("a", CLEAN, fused=True))
    assert outcome.kernel == (4.0, 0.0)
    assert values(outcome.optimizer) == [[1.0, 2.0], None]
    p, outcome = protocol.step(p, Optimizer("b", OVERFLOW, fused=True), returns="loss")
    assert (outcome.value, outcome.called, outcome.stepped) == ("loss", True, False)
    assert values(outcome.optimizer) == [[4.0, math.inf], None]  # untouched


def test_a_fused_step_after_unscale_does_not_divide_again():
    p, outcome = protocol.unscale_(begun(), Optimizer("a", CLEAN, fused=True))
    _, outcome = protocol.step(p, outcome.optimizer)
    assert outcome.kernel == (None, 0.0)
    assert values(outcome.optimizer) == [[1.0, 2.0], None]


def test_override_keeps_the_streak_and_forgets_the_stages():
    p, _ = protocol.step(begun(), Optimizer("a", CLEAN))
    p, _ = protocol.update(p)
    p, _ = protocol.unscale_(p, Optimizer("a", CLEAN))
    p, _ = protocol.update(p, 0.1)
    assert (p.state.scale, p.state.growth_tracker, p.records) == (float(np.float32(0.1)), 1, ())


@pytest.mark.parametrize(
    ("found", "overflows"),
    [((0.0, 0.0), False), ((0.0, 1.0), True), ((1e-45, 0.0), True), ((math.nan, 0.0), True), ((-1.0, 1.0), False)],
)
def test_found_inf_is_summed_over_optimizers_in_float32(found, overflows):
    p = begun()
    for key, value in zip("ab", found, strict=True):
        p = p.note(key, found_inf=round_to_float32(value))
    assert protocol.update(p)[0].state.scale == (2.0 if overflows else 4.0)


@pytest.mark.parametrize(("found", "steps"), [(0.0, True), (1.0, False), (2.0, True), (math.nan, True)])
def test_a_fused_kernel_skips_at_exactly_one(found, steps):
    optimizer = Optimizer("a", CLEAN, fused=True)
    p, _ = protocol.unscale_(begun(), optimizer)
    _, outcome = protocol.step(p.note("a", found_inf=found), optimizer)
    assert (outcome.called, outcome.stepped) == (True, steps)


@pytest.mark.parametrize("kind", [list, tuple])
def test_scale_walks_lists_and_tuples(kind):
    _, outcome = protocol.scale(begun(), kind([ONE, [ONE], ()]))
    assert outcome.value == kind([4.0, [4.0], ()])
    assert protocol.scale(begun(), iter([ONE]))[1].value is protocol.LAZY


# --------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("event", ["unscale_", "step", "update"])
def test_all_but_scale_is_refused_before_the_scale_exists(event):
    p = Protocol()
    arguments = () if event == "update" else (Optimizer("a", CLEAN),)
    text = (
        f"Attempted {event} but _scale is None.  "
        "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration."
    )
    refused(getattr(protocol, event)(p, *arguments), p, Refusal(AssertionError, text))


@pytest.mark.parametrize(
    ("first", "second", "refusal"),
    [
        ("unscale_", "unscale_", refusals.UNSCALED_TWICE),
        ("step", "unscale_", refusals.UNSCALED_LATE),
        ("step", "step", refusals.STEPPED_TWICE),
    ],
)
def test_each_event_happens_once_an_iteration(first, second, refusal):
    p, _ = getattr(protocol, first)(begun(), Optimizer("a", CLEAN))
    refused(getattr(protocol, second)(p, Optimizer("a", CLEAN)), p, refusal)
    assert getattr(protocol, second)(p, Optimizer("b", CLEAN))[1].refusal is None


def test_a_closure_keyword_is_refused_and_changes_nothing():
    p = begun()
    refused(protocol.step(p, Optimizer("a", CLEAN), closure=True), p, refusals.CLOSURE)


def test_float16_is_refused_before_any_gradient_is_unscaled():
    grads = (np.float32([4.0]), np.float16([4.0]))
    p, outcome = protocol.unscale_(begun(), Optimizer("a", grads))
    assert outcome.refusal == refusals.FLOAT16
    assert values(outcome.optimizer) == [[4.0], [4.0]]
    assert p.record("a") == protocol.Record()
    assert state_dict.pickled(p)[1].refusal == refusals.PICKLED_LATE  # it was looked up
    assert protocol.step(begun(), replace(outcome.optimizer, fused=True))[1].stepped


def test_a_step_without_gradients_is_refused_and_stays_unscaled():
    p, outcome = protocol.step(begun(), Optimizer("a", (None,)))
    assert outcome.refusal == refusals.NOTHING_CHECKED
    assert p.record("a") == protocol.Record(Stage.UNSCALED, None)
    refused(protocol.update(p), p, refusals.NOTHING_CHECKED_AT_ALL)


def test_a_fused_step_without_gradients_passes_unless_they_came_late():
    p, outcome = protocol.step(begun(), Optimizer("a", (None,), fused=True))
    assert outcome.stepped
    p, _ = protocol.unscale_(begun(), Optimizer("a", (None,), fused=True))
    p, outcome = protocol.step(p, Optimizer("a", CLEAN, fused=True))
    assert outcome.refusal == refusals.FOUND_INF_IS_INT
    assert p.record("a").stage is Stage.UNSCALED


def test_a_step_that_raises_leaves_a_plain_optimizer_unscaled_and_a_fused_one_with_grad_scale():
    fails = Refusal(TypeError, "no")
    p, outcome = protocol.step(begun(), Optimizer("a", CLEAN), fails=fails)
    assert (outcome.refusal, outcome.called, outcome.stepped) == (fails, True, False)
    assert p.record("a").stage is Stage.UNSCALED
    p, outcome = protocol.step(begun(), Optimizer("a", CLEAN, fused=True), fails=fails)
    assert outcome.optimizer.grad_scale == (4.0,)
    p, outcome = protocol.step(p, outcome.optimizer)
    assert outcome.kernel == (16.0, 0.0)
    p, outcome = protocol.step(p, replace(outcome.optimizer, key="b", grad_scale=(None,)))
    assert outcome.refusal == refusals.GRAD_SCALE_IS_NONE


@pytest.mark.parametrize(
    ("new_scale", "refusal"),
    [
        (8, Refusal(AttributeError, "'int' object has no attribute 'device'")),
        ("8", Refusal(AttributeError, "'str' object has no attribute 'device'")),
        (np.float32(8), Refusal(AttributeError, "'str' object has no attribute 'type'")),
        (1e39, Refusal(RuntimeError, "value cannot be converted to type float without overflow")),
        (Tensor(8.0, (2,)), refusals.NEW_SCALE),
        (Tensor(8.0, (0,)), refusals.NEW_SCALE),
        (Tensor(8.0, device="meta"), refusals.NEW_SCALE),
        (Tensor(8.0, requires_grad=True), refusals.NEW_SCALE),
        (Tensor(8.0, (1, 1)), Refusal(RuntimeError, "output with shape [] doesn't match the broadcast shape [1, 1]")),
    ],
)
def test_a_new_scale_that_is_refused_changes_nothing(new_scale, refusal):
    p, _ = protocol.unscale_(begun(), Optimizer("a", CLEAN))
    refused(protocol.update(p, new_scale), p, refusal)


@pytest.mark.parametrize("new_scale", [0.0, -3.0, math.inf, 2.0**-149, np.float64(8.0), Tensor(8.0)])
def test_a_new_scale_that_torch_takes(new_scale):
    p, outcome = protocol.update(begun(), new_scale)
    assert outcome.refusal is None
    assert p.state.scale == (new_scale.value if isinstance(new_scale, Tensor) else new_scale)


def test_a_tensor_beyond_float32_becomes_inf():
    assert protocol.update(begun(), Tensor(1e39))[0].state.scale == math.inf


def test_a_new_scale_that_describes_another_library_s_tensor_is_refused_with_a_cure():
    class Device:
        type = "cpu"

    class Foreign:
        device = Device()

    with pytest.raises(TypeError, match=r"describe a tensor as protocol\.Tensor"):
        protocol.update(begun(), Foreign())


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("growth_factor", "x", "argument 'scale_growth_factor' (position 4) must be float, not str"),
        ("backoff_factor", None, "argument 'scale_backoff_factor' (position 5) must be float, not NoneType"),
        ("growth_interval", 2.0, "argument 'growth_interval' (position 6) must be int, not float"),
        ("growth_interval", True, "argument 'growth_interval' (position 6) must be int, not bool"),
        ("growth_interval", np.float32(2), "argument 'growth_interval' (position 6) must be int, not numpy.float32"),
    ],
)
def test_a_setting_of_the_wrong_type_is_refused_by_update_which_has_summed_already(name, value, text):
    p = begun()
    for key in "ab":
        p = p.note(key, found_inf=1.0)
    p, outcome = protocol.update(state_dict.put(p, name, value))
    assert outcome.refusal == Refusal(TypeError, f"_amp_update_scale_(): {text}")
    assert [r.found_inf for _, r in p.records] == [2.0, 1.0]
    assert p.state == State(4.0)


def test_an_interval_beyond_int64_is_refused():
    p = state_dict.put(begun().note("a", found_inf=0.0), "growth_interval", 2**63)
    assert protocol.update(p)[1].refusal == Refusal(ValueError, "Overflow when unpacking long long")


@pytest.mark.parametrize(
    ("constants", "text"),
    [
        ({"growth_factor": 1.0}, "The growth factor must be > 1.0."),
        ({"backoff_factor": 1.0}, "The backoff factor must be < 1.0."),
    ],
)
def test_construction_looks_at_two_constants_if_enabled(constants, text):
    with pytest.raises(AssertionError, match=text):
        protocol.create(Rule(**constants))
    protocol.create(Rule(**constants), enabled=False)


@pytest.mark.parametrize(("outputs", "exists"), [([ONE, 3.0], True), ([3.0, ONE], False), (None, False)])
def test_outputs_that_are_no_tensors_are_refused_after_those_before_them(outputs, exists):
    p, outcome = protocol.scale(Protocol(), outputs)
    assert outcome.refusal == Refusal(ValueError, "outputs must be a Tensor or an iterable of Tensors")
    assert p.exists is exists


def test_an_init_scale_beyond_float32_is_refused_by_scale():
    p = protocol.create(Rule.unchecked(init_scale=1e39))
    refused(protocol.scale(p, ONE), p, refusals.overflow(1e39))


# ------------------------------------------------------------------------------------------ saving, disabled


def test_a_state_dict_round_trip_into_a_fresh_and_into_a_used_scaler():
    p = state_dict.put(begun(8.0), "growth_interval", 7)
    source = state_dict.state_dict(p)
    assert source == {
        "scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 7, "_growth_tracker": 0
    }  # fmt: skip
    for target in (Protocol(), begun()):
        loaded, outcome = state_dict.load_state_dict(target, {**source, "_growth_tracker": 3, "scale": 0.1})
        assert outcome.refusal is None
        assert state_dict.get_growth_tracker(loaded) == 3
        assert state_dict.get_scale(loaded) == (float(np.float32(0.1)) if target.exists else 0.1)
        assert state_dict.get(loaded, "growth_interval")[1].value == 7
        beyond, outcome = state_dict.load_state_dict(target, {**source, "scale": 1e39})  # no float32 holds it
        assert (outcome.refusal is None, state_dict.get_scale(beyond) == 1e39) == (not target.exists,) * 2


def test_a_state_dict_that_lacks_a_key_is_loaded_up_to_it():
    p, outcome = state_dict.load_state_dict(begun(), {"scale": 8.0, "backoff_factor": 0.25})
    assert outcome.refusal == Refusal(KeyError, "'growth_factor'")
    assert (p.state.scale, p.rule.backoff_factor) == (8.0, 0.5)


def test_an_empty_state_dict_and_an_overflowing_scale_are_refused():
    p = begun()
    text = "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
    refused(state_dict.load_state_dict(p, {}), p, Refusal(RuntimeError, text))
    refused(state_dict.load_state_dict(p, {"scale": 1e39}), p, refusals.overflow(1e39))


def test_pickling_is_refused_in_mid_iteration_and_unmakes_the_scale():
    p = begun(0.1)
    mid, _ = protocol.unscale_(p, Optimizer("a", CLEAN))
    refused(state_dict.pickled(mid), mid, refusals.PICKLED_LATE)
    _, outcome = state_dict.pickled(p)
    assert outcome.value == replace(p, exists=False)
    assert state_dict.get_scale(outcome.value) == float(np.float32(0.1))


def test_a_disabled_scaler_passes_everything_through():
    p = protocol.create(Rule(), enabled=False)
    optimizer = Optimizer("a", OVERFLOW)
    assert protocol.scale(p, "anything")[1].value == "anything"
    assert protocol.unscale_(p, optimizer)[1].optimizer is optimizer
    stepped = protocol.step(p, optimizer, closure=True, returns=5.0)[1]
    assert (stepped.value, stepped.stepped, stepped.optimizer) == (5.0, True, optimizer)
    assert protocol.update(p, 8)[1].refusal is None
    assert (state_dict.get_scale(p), state_dict.get_growth_tracker(p)) == (1.0, 0)
    assert state_dict.state_dict(p) == {}
    assert state_dict.load_state_dict(p, {})[1].refusal is None
    assert state_dict.get(p, "growth_factor")[1].refusal == refusals.unset("growth_factor")
    assert state_dict.get(state_dict.put(p, "growth_factor", 3), "growth_factor")[1].value == 3


# ------------------------------------------------------------------------------------------------- arithmetic


@pytest.mark.parametrize(
    ("scale", "inverse"),
    [(2.0**-128, math.inf), (2.0**-127, 2.0**127), (0.0, math.inf), (-0.0, -math.inf), (2.0**127, 2.0**-127),
     (math.inf, 0.0), (3.0, float(np.float32(1 / 3)))],
)  # fmt: skip
def test_the_reciprocal_is_rounded_to_float32(scale, inverse):
    assert arithmetic.reciprocal(scale) == inverse


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_unscaling_keeps_the_format_and_rounds_once(dtype):
    g = np.array([1.0, 3.0, 7.0], dtype)
    (out,) = arithmetic.unscaled((g,), arithmetic.reciprocal(3.0))
    assert out.dtype == g.dtype
    exact = g.astype(np.float64) * np.float64(np.float32(1 / 3))
    assert out.tolist() == exact.astype(np.float32 if dtype != np.float64 else dtype).astype(dtype).tolist()


def test_a_float64_gradient_beyond_float32_is_finite():
    assert arithmetic.found_inf((np.array([1e300]),)) == 0.0
    assert arithmetic.found_inf((np.array([math.inf]),)) == 1.0
    assert arithmetic.found_inf((np.array([math.nan], ml_dtypes.bfloat16), None)) == 1.0
    assert arithmetic.found_inf((None,)) is None


def test_a_reciprocal_of_one_leaves_the_very_gradients():
    grads = (np.float32([1.0]), None)
    assert arithmetic.unscaled(grads, np.float32(1)) is grads


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [("float16", (), "float32"), ("float16", (2,), "float16"), ("float64", (), "float64"), ("int64", (2,), "float32"),
     ("bool", (), "float32")],
)  # fmt: skip
def test_a_loss_is_promoted_as_torch_promotes_it(dtype, shape, expected):
    assert arithmetic.scaled_loss(np.ones(shape, dtype), 2.0).dtype == expected
