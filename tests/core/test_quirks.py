"""What single frameworks do and nobody else: each documented sentence as a short history, worked
out by hand.

The recorded trajectories hold every dialect to the bit; here is why they look as they do.
"""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampsim import Rule, State, dialects, init, update
from ampsim.core.formats import FP32
from ampsim.core.machine import override
from ampsim.core.quirks import HoldAtBounds, StreakStartsAt, Tolerance
from tests.core.helpers import scales


def growths(rule: Rule, updates: int) -> list[int]:
    """At which of so many clean updates, counted from 1, the scale grows."""
    trace = [init(rule).scale, *scales(rule, "0" * updates)]
    return [n for n in range(1, updates + 1) if trace[n] > trace[n - 1]]


def test_deepspeed_first_growth_is_late() -> None:
    rule = Rule(2.0, growth_interval=3, quirks=(StreakStartsAt(-1),))
    assert growths(rule, 13) == [4, 7, 10, 13]
    assert growths(rule.replace(quirks=()), 13) == [3, 6, 9, 12]
    assert growths(
        dialects.get("deepspeed.FP16_Optimizer", init_scale=2.0, growth_interval=3), 13
    ) == [
        4,
        7,
        10,
        13,
    ]


def test_flax_growth_is_late() -> None:
    # It compares before it counts: interval 3 grows at 4, 8, 12; interval 1 at every second update.
    assert growths(
        dialects.get("flax.DynamicScale", init_scale=2.0, growth_interval=3), 12
    ) == [
        4,
        8,
        12,
    ]
    assert growths(
        dialects.get("flax.DynamicScale", init_scale=2.0, growth_interval=1), 6
    ) == [
        2,
        4,
        6,
    ]
    assert growths(
        dialects.get("jmp.DynamicLossScale", init_scale=2.0, growth_interval=3), 12
    ) == [
        3,
        6,
        9,
        12,
    ]


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
def test_fairseq_backs_off_at_overflow_fraction(history, halvings) -> None:
    rule = Rule(2.0**15, growth_interval=100, quirks=(Tolerance(0.5),))
    assert scales(rule, history) == [2.0 ** (15 - int(n)) for n in halvings]


def test_bmtrain_holds_scale_at_minimum() -> None:
    rule = Rule(8.0, growth_interval=3, quirks=(HoldAtBounds(8.0, 64.0),))
    assert scales(rule, "0010") == [
        8.0,
        8.0,
        8.0,
        16.0,
    ]  # the overflow keeps even the streak


def test_flax_outside_jit_starts_in_double() -> None:
    start, backoff, f = 12345.6789, 0.7, np.float32
    eager = dialects.get(
        "flax.DynamicScale", init_scale=start, backoff_factor=backoff, jit=False
    )
    first, second = scales(eager, "11")
    assert first == float(f(start * backoff)) != float(f(start) * f(backoff))
    assert second == float(f(first) * f(backoff))
    smallest = dialects.get(
        "flax.DynamicScale", init_scale=2.0**-126, minimum_scale=None, jit=False
    )
    assert scales(smallest, "1") == [0.0]  # flushed, as XLA does


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("guided_diffusion.MixedPrecisionTrainer", {}),
        ("flax.DynamicScale", {"jit": False}),
    ],
)
def test_override_sets_base_of_backoff(name, parameters) -> None:
    rule = dialects.get(name, **parameters)
    assert (
        update(rule, override(rule, init(rule), 8.0), True).scale == 4.0
    )  # not half of the first scale


MEGATRON = dialects.get(
    "megatron.core.DynamicGradScaler", init_scale=1024.0, hysteresis=2
)
COLOSSALAI = dialects.get(
    "colossalai.DynamicGradScaler", init_scale=1024.0, hysteresis=2
)
DEEPSPEED = dialects.get(
    "deepspeed.DynamicLossScaler", init_scale=1024.0, delayed_shift=2
)
DEEPSPEED_CONSECUTIVE = dialects.get(
    "deepspeed.DynamicLossScaler",
    init_scale=1024.0,
    delayed_shift=2,
    consecutive_hysteresis=True,
)
NEMO = dialects.get("nemo.GradScaler", init_scale=1024.0, hysteresis=2)
PADDLE = dialects.get(
    "paddle.amp.GradScaler[dygraph]", init_scale=1024.0, decr_every_n_nan_or_inf=2
)
PADDLE_STATIC = dialects.get(
    "paddle.static.update_loss_scaling[cpu kernel]",
    init_scale=1024.0,
    decr_every_n_nan_or_inf=2,
)
TF_CONTRIB = dialects.get(
    "tf.contrib.ExponentialUpdateLossScaleManager",
    init_scale=1024.0,
    decr_every_n_nan_or_inf=2,
    backoff_factor=0.5,
)


@pytest.mark.parametrize(
    ("rule", "gapped", "in_a_row", "then"),
    [  # backoffs after 1 0 1, after 1 1 1, and after 1 0 1 0 1 0 1
        (
            MEGATRON,
            "001",
            "012",
            "0011223",
        ),  # not consecutive; then every overflow, until a growth
        (COLOSSALAI, "001", "012", "0011223"),
        (DEEPSPEED, "001", "012", "0011223"),
        (NEMO, "000", "012", "0000000"),  # a clean step forgives
        (DEEPSPEED_CONSECUTIVE, "000", "012", "0000000"),
        (PADDLE, "000", "011", "0000000"),  # and a backoff takes two more
        (PADDLE_STATIC, "000", "011", "0000000"),
        (
            TF_CONTRIB,
            "001",
            "011",
            "0011112",
        ),  # not consecutive, and a backoff takes two more
    ],
    ids=[
        "megatron",
        "colossalai",
        "deepspeed",
        "nemo",
        "consecutive",
        "paddle",
        "paddle-static",
        "contrib",
    ],
)
def test_hysteresis_of_two_per_framework(rule, gapped, in_a_row, then) -> None:
    for history, backoffs in [("101", gapped), ("111", in_a_row), ("1010101", then)]:
        assert scales(rule, history) == [2.0 ** (10 - int(n)) for n in backoffs]


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
def test_growth_at_float32_maximum(name, top) -> None:
    rule = dialects.get(name, init_scale=2.0**127, growth_interval=1)
    assert scales(rule, "0000")[-1] == top
    if math.isinf(top):
        assert (
            scales(rule, "00" + "1" * 20)[-1] == math.inf
        )  # inf * 0.5 is inf, for ever
    if top == FP32.max_finite:
        assert (
            scales(rule, "001")[-1] == FP32.max_finite / 2
        )  # and never a power of two again


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
def test_backoff_at_smallest_scale(name, parameters, bottom) -> None:
    rule = dialects.get(name, init_scale=2.0**-126, **parameters)
    assert scales(rule, "1" * 24)[21:] == bottom


@given(
    st.sampled_from(dialects.names()), st.text("0001", max_size=40), st.integers(0, 40)
)
def test_resume_is_exact_with_quirks(name, history, cut) -> None:
    rule = pickle.loads(pickle.dumps(dialects.get(name)))  # noqa: S301
    assert rule in {dialects.get(name)}
    state = init(rule)
    for n, flag in enumerate(history):
        if n == cut:
            again = pickle.loads(pickle.dumps(state))  # noqa: S301
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
