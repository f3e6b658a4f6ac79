"""What single frameworks do and nobody else: each documented sentence as a short history, worked out by hand.

The recorded trajectories hold every dialect to the bit; here is why they look as they do.
"""

import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampsim import Rule, State, dialects, init, update
from ampsim.core.formats import FP32
from ampsim.core.machine import Arithmetic, override
from ampsim.core.quirks import (
    ClipEveryUpdate,
    FirstUpdateInDouble,
    HoldAtBounds,
    RaiseAfterConsecutive,
    RampUntilOverflow,
    StreakStartsAt,
    Tolerance,
)
from tests.core.helpers import scales


def growths(rule: Rule, updates: int) -> list[int]:
    """At which of so many clean updates, counted from 1, the scale grows."""
    trace = [init(rule).scale, *scales(rule, "0" * updates)]
    return [n for n in range(1, updates + 1) if trace[n] > trace[n - 1]]


# ----------------------------------------------------------- StreakStartsAt: DeepSpeed's first growth is late


def test_deepspeed_grows_first_after_one_more_then_every_interval() -> None:
    rule = Rule(2.0, growth_interval=3, quirks=(StreakStartsAt(-1),))
    assert growths(rule, 13) == [4, 7, 10, 13]
    assert growths(rule.replace(quirks=()), 13) == [3, 6, 9, 12]
    assert growths(dialects.get("deepspeed.FP16_Optimizer", init=2.0, interval=3), 13) == [4, 7, 10, 13]


def test_flax_grows_late_every_time() -> None:
    # It compares before it counts: interval 3 grows at 4, 8, 12; interval 1 at every second update.
    assert growths(dialects.get("flax.DynamicScale", init=2.0, interval=3), 12) == [4, 8, 12]
    assert growths(dialects.get("flax.DynamicScale", init=2.0, interval=1), 6) == [2, 4, 6]
    assert growths(dialects.get("jmp.DynamicLossScale", init=2.0, interval=3), 12) == [3, 6, 9, 12]


# --------------------------------------------------- giving up: `test_trace` has the recorded runs of two more


def test_mindspore_raises_after_too_many_overflows_in_a_row() -> None:
    rule = Rule(64.0, quirks=(RaiseAfterConsecutive(3),))
    assert scales(rule, "1110111") == [32.0, 16.0, 8.0, 8.0, 4.0, 2.0, 1.0]  # a clean step starts over
    with pytest.raises(RuntimeError) as caught:
        scales(rule, "1111")
    assert caught.value.args == (
        "Dynamic loss scale Continuous overflow ", 4, " times, has exceeded maximum threshold."
    )  # fmt: skip


# ----------------------------------------------------------------- Tolerance: fairseq backs off at a fraction


@pytest.mark.parametrize(
    ("history", "halvings"),
    [
        ("1", "1"),  # 1 of 1
        ("01", "01"),  # 1 of 2 reaches 0.5
        ("001", "000"),  # 1 of 3 does not
        ("0011", "0001"),  # 2 of 4 does
        ("0011001", "0001111"),  # counted anew since the backoff: 1 of 3
        ("00110011", "00011112"),
        ("101", "112"),  # not consecutive, and yet: 1 of 1, then 1 of 2
    ],
)
def test_fairseq_backs_off_when_overflows_reach_a_fraction_of_the_updates(history, halvings) -> None:
    rule = Rule(2.0**15, growth_interval=100, quirks=(Tolerance(0.5),))
    assert scales(rule, history) == [2.0 ** (15 - int(n)) for n in halvings]


def test_a_tolerated_overflow_still_breaks_the_streak() -> None:
    rule = Rule(16.0, growth_interval=3, quirks=(Tolerance(0.5),))
    assert scales(rule, "001000") == [16.0, 16.0, 16.0, 16.0, 16.0, 32.0]


def test_a_growth_restarts_the_updates_and_keeps_the_overflows() -> None:
    rule = Rule(16.0, growth_interval=2, quirks=(Tolerance(0.6),))
    assert scales(rule, "01") == [16.0, 16.0]  # 1 of 2 is tolerated
    # After the growth at the fourth, the sixth makes 2 overflows in 2 updates; neither 1 of 2 nor 2 of 6.
    assert scales(rule, "010001") == [16.0, 16.0, 16.0, 32.0, 32.0, 16.0]
    assert scales(rule.replace(growth_factor=1.0), "010001") == [16.0] * 5 + [8.0]  # nor one that leaves the scale


# ------------------------------------------------------------------- HoldAtBounds: BMTrain's bounds are gates


def test_bmtrain_a_growth_at_the_maximum_waits_with_the_streak_counting_on() -> None:
    rule = Rule(8.0, growth_interval=2, growth_test=">=", quirks=(HoldAtBounds(1.0, 8.0),))
    state = init(rule)
    for n in range(1, 6):
        state = update(rule, state, False)
        assert (state.scale, state.growth_tracker) == (8.0, n)
    assert update(rule, state, True) == State(4.0, 0)


# ------------------------------------------------------------------------- ClipEveryUpdate, RampUntilOverflow


def test_mpx_clips_to_bounds_in_the_scales_format() -> None:
    rule = Rule(1.0, quirks=(ClipEveryUpdate(0.7, 0.7),))
    assert scales(rule, "0") == [float(np.float32(0.7))]


def test_chainer_ramps_up_until_the_first_overflow_of_the_run() -> None:
    slow = 2.0**0.25  # interval 4: the scale doubles in four updates
    rule = dialects.get("chainer.GradientMethod.loss_scaling", interval=4)
    after = [8.0 * slow, 8.0 * slow * slow, 8.0 * slow * slow * slow, 8.0 * slow * slow * slow * slow]
    assert scales(rule, "00001" + "0000") == [2.0, 4.0, 8.0, 16.0, 8.0, *after]
    assert rule.quirks == (RampUntilOverflow(2.0),)


# ------------------------------------------------------------- FirstUpdateInDouble: flax before its first jit


@pytest.mark.parametrize(("start", "backoff"), [(1000 / 3, 0.7), (0.1, 0.3), (12345.6789, 0.7)])
def test_flax_outside_jit_computes_its_first_update_in_double(start, backoff) -> None:
    eager = dialects.get("flax.DynamicScale", init=start, backoff=backoff, jit=False)
    jitted = dialects.get("flax.DynamicScale", init=start, backoff=backoff, jit=True)
    f = np.float32
    assert scales(eager, "1") == [float(f(start * backoff))]
    assert scales(jitted, "1") == [float(f(start) * f(backoff))]
    assert scales(eager, "1") != scales(jitted, "1")
    assert scales(eager, "11")[1] == float(f(scales(eager, "1")[0]) * f(backoff))  # then in float32
    assert scales(eager, "01") == scales(jitted, "01")  # a clean first update rounds the scale, and that is all


def test_flax_in_double_flushes_and_stops_where_float32_does() -> None:
    rule = Rule(2.0**-126, quirks=(FirstUpdateInDouble(),), arithmetic=Arithmetic(flush_subnormals=True))
    assert scales(rule, "1") == [0.0]
    assert scales(rule.replace(min_scale=2.0**-126), "1") == [2.0**-126]


# --------------------------------------------------------- hysteresis of 2: one word, four different machines

MEGATRON = dialects.get("megatron.core.DynamicGradScaler", init=1024.0, hysteresis=2)
COLOSSALAI = dialects.get("colossalai.DynamicGradScaler", init=1024.0, hysteresis=2)
DEEPSPEED = dialects.get("deepspeed.DynamicLossScaler", init=1024.0, delayed_shift=2)
DEEPSPEED_CONSECUTIVE = dialects.get(
    "deepspeed.DynamicLossScaler", init=1024.0, delayed_shift=2, consecutive_hysteresis=True
)
NEMO = dialects.get("nemo.GradScaler", init=1024.0, hysteresis=2)
PADDLE = dialects.get("paddle.amp.GradScaler[dygraph]", init=1024.0, decr_every_n_nan_or_inf=2)
PADDLE_STATIC = dialects.get("paddle.static.update_loss_scaling[cpu kernel]", init=1024.0, decr_every_n_nan_or_inf=2)
TF_CONTRIB = dialects.get(
    "tf.contrib.ExponentialUpdateLossScaleManager", init=1024.0, decr_every_n_nan_or_inf=2, backoff=0.5
)


@pytest.mark.parametrize(
    ("rule", "gapped", "in_a_row", "then"),
    [  # backoffs after 1 0 1, after 1 1 1, and after 1 0 1 0 1 0 1
        (MEGATRON, "001", "012", "0011223"),  # not consecutive; then every overflow, until a growth
        (COLOSSALAI, "001", "012", "0011223"),
        (DEEPSPEED, "001", "012", "0011223"),
        (NEMO, "000", "012", "0000000"),  # a clean step forgives
        (DEEPSPEED_CONSECUTIVE, "000", "012", "0000000"),
        (PADDLE, "000", "011", "0000000"),  # and a backoff takes two more
        (PADDLE_STATIC, "000", "011", "0000000"),
        (TF_CONTRIB, "001", "011", "0011112"),  # not consecutive, and a backoff takes two more
    ],
    ids=["megatron", "colossalai", "deepspeed", "nemo", "consecutive", "paddle", "paddle-static", "contrib"],
)
def test_what_two_means(rule, gapped, in_a_row, then) -> None:
    for history, backoffs in [("101", gapped), ("111", in_a_row), ("1010101", then)]:
        assert scales(rule, history) == [2.0 ** (10 - int(n)) for n in backoffs]


def test_colossalai_takes_a_hysteresis_of_zero_for_one() -> None:
    assert scales(dialects.get("colossalai.DynamicGradScaler", init=1024.0, hysteresis=0), "1") == [512.0]
    with pytest.raises(TypeError, match="hysteresis=False is a bool"):
        dialects.get("colossalai.DynamicGradScaler", hysteresis=False)


# -------------------------------------------------------------------------- the top and the bottom of float32


@pytest.mark.parametrize(
    ("name", "top"),
    [
        ("torch.amp.GradScaler", 2.0**127),
        ("torch.fsdp.ShardedGradScaler[cpu]", math.inf),
        ("megatron.core.DynamicGradScaler", math.inf),
        ("keras.LossScaleOptimizer[jax]", math.inf),
        ("paddle.amp.GradScaler[dygraph]", math.inf),
        ("mindspore.nn.DynamicLossScaleUpdateCell", math.inf),
        ("paddle.static.update_loss_scaling[cpu kernel]", 2.0**127),
        ("mindspore.amp.DynamicLossScaler", 2.0**127),
        ("jmp.DynamicLossScale", 2.0**127),
        ("flax.DynamicScale", FP32.max_finite),
    ],
)
def test_growing_at_the_top(name, top) -> None:
    rule = dialects.get(name, init=2.0**127, interval=1)
    assert scales(rule, "0000")[-1] == top
    if math.isinf(top):
        assert scales(rule, "00" + "1" * 20)[-1] == math.inf  # inf * 0.5 is inf, for ever
    if top == FP32.max_finite:
        assert scales(rule, "001")[-1] == FP32.max_finite / 2  # and never a power of two again


@pytest.mark.parametrize(
    ("name", "parameters", "bottom"),
    [
        ("torch.amp.GradScaler", {}, [2.0**-148, 2.0**-149, 0.0]),
        ("paddle.amp.GradScaler[dygraph]", {}, [2.0**-148, 2.0**-149, 0.0]),
        ("keras.LossScaleOptimizer[torch]", {}, [2.0**-148, 2.0**-149, 0.0]),
        ("keras.LossScaleOptimizer[jax]", {}, [0.0, 0.0, 0.0]),
        ("flax.DynamicScale", {"minimum_scale": None}, [0.0, 0.0, 0.0]),
        ("flax.DynamicScale", {}, [2.0**-126, 2.0**-126, 2.0**-126]),
    ],
    ids=["torch", "paddle", "keras-torch", "keras-jax", "flax-without-minimum", "flax"],
)
def test_backing_off_at_the_bottom(name, parameters, bottom) -> None:
    rule = dialects.get(name, init=2.0**-126, **parameters)
    assert scales(rule, "1" * 24)[21:] == bottom


def test_guided_diffusion_steps_in_the_logarithm() -> None:
    rule = dialects.get("guided_diffusion.MixedPrecisionTrainer", growth=0.25)
    assert scales(rule, "0000") == [float(FP32.round(2.0 ** (20 + n / 4))) for n in (1, 2, 3, 4)]
    assert scales(rule, "01")[-1] == FP32.round(2.0**19.25)  # an overflow takes 1 away, whatever was added
    by_hand = override(rule, update(rule, init(rule), found_inf=False), 8.0)
    assert update(rule, by_hand, found_inf=True).scale == 4.0
    assert update(rule, override(rule, by_hand, 0.0), found_inf=False).scale == 0.0
    assert scales(rule.replace(init_scale=2.0**127), "000")[-1] == FP32.round(2.0**127.75)
    assert scales(rule.replace(init_scale=2.0**127), "000010000")[3:6] == [math.inf, 2.0**127, FP32.round(2.0**127.25)]
    with pytest.raises(
        ValueError, match=r"growth=1\.5: expected 0 to 1, in log2 per clean step; the default is 0\.001"
    ):
        dialects.get("guided_diffusion.MixedPrecisionTrainer", growth=1.5)


def test_jmp_loses_its_minimum_under_jit() -> None:
    given_ = {"init": 4.0, "min_loss_scale": 2.0**-10}
    assert scales(dialects.get("jmp.DynamicLossScale", **given_), "1" * 6)[-1] == 0.0625
    jitted = dialects.get("jmp.DynamicLossScale", jit=True, **given_)
    assert scales(jitted, "1" * 6)[-1] == 1.0
    assert scales(jitted.replace(init_scale=0.25), "1") == [1.0]  # below the floor an overflow raises the scale


# ---------------------------------------------------------------------------------------------- every dialect


@pytest.mark.parametrize("name", dialects.names())
def test_rules_and_states_with_quirks_are_values_too(name) -> None:
    rule = dialects.get(name)
    assert pickle.loads(pickle.dumps(rule)) == rule  # noqa: S301 - our own bytes
    assert hash(rule) == hash(dialects.get(name))


@given(st.sampled_from(dialects.names()), st.text("0001", max_size=40), st.integers(0, 40))
def test_resume_is_invisible_whatever_the_quirks(name, history, cut) -> None:
    rule = dialects.get(name)
    state = init(rule)
    for n, flag in enumerate(history):
        if n == cut:
            again = pickle.loads(pickle.dumps(state))  # noqa: S301 - our own bytes
            assert again in {state}
            state = again
        before = pickle.dumps(state)
        once, twice = _attempt(rule, state, flag), _attempt(rule, state, flag)
        assert pickle.dumps(state) == before
        assert once == twice
        if once is None:
            return
        state = once


def _attempt(rule: Rule, state: State, flag: str) -> State | None:
    try:
        return update(rule, state, flag == "1")
    except Exception:
        return None


def test_what_a_quirk_remembers_is_in_the_state() -> None:
    rule = Rule(16.0, growth_interval=2, quirks=(Tolerance(0.6), RaiseAfterConsecutive(6), RampUntilOverflow(4.0)))
    for history in itertools.product("01", repeat=6):
        straight = scales(rule, history)
        state, resumed = init(rule), []
        for flag in history:
            state = State(state.scale, state.growth_tracker, state.overflow_tracker, state.pending, state.memory)
            state = update(rule, state, flag == "1")
            resumed.append(state.scale)
        assert resumed == straight


def test_an_override_keeps_what_quirks_remember() -> None:
    rule = Rule(16.0, quirks=(Tolerance(0.6),))
    state = update(rule, init(rule), False)
    assert override(rule, state, 4.0).memory == state.memory != ()


def test_flax_outside_jit_keeps_a_scale_that_was_set_by_hand_before_the_first_update() -> None:
    rule = dialects.get("flax.DynamicScale", jit=False)
    assert update(rule, override(rule, init(rule), 8.0), True).scale == 4.0
    assert update(rule, override(rule, init(rule), 8.0), False).scale == 8.0
