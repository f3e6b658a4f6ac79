"""Dialects: names, parameters, refusals, and what each reproduces of its framework."""

import math

import pytest

from ampsim import Rule, dialects, replay
from ampsim.core.formats import FP32
from ampsim.core.replay.fold import states


def test_every_dialect_has_a_source_and_makes_a_rule() -> None:
    for name in dialects.names():
        assert dialects.ALL[name].source
        assert isinstance(dialects.get(name), Rule)


def test_torch_defaults_are_the_rules_defaults() -> None:
    assert dialects.get("torch.amp.GradScaler") == Rule()
    given = dialects.get("torch.amp.GradScaler", init=65536.0, growth=2.0, backoff=0.5, interval=2000)
    assert given == Rule()


def test_an_unknown_dialect_names_the_nearest() -> None:
    with pytest.raises(KeyError, match=r"unknown dialect 'flax\.DynamicScal': did you mean 'flax\.DynamicScale'"):
        dialects.get("flax.DynamicScal")


def test_an_unknown_parameter_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="has no parameter 'hysteresys': did you mean 'hysteresis'"):
        dialects.get("nemo.GradScaler", hysteresys=2)


def test_a_fixed_number_is_refused_otherwise() -> None:
    with pytest.raises(ValueError, match=r"factor=3.0: this framework fixes it; expected 2\.0"):
        dialects.get("keras.LossScaleOptimizer[torch]", factor=3.0)


@pytest.mark.parametrize("factor", [0.5, math.nan, math.inf, 0.0])
def test_a_factor_below_one_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match=r"factor=.*expected a finite number >= 1; to never grow"):
        dialects.get("jmp.DynamicLossScale", factor=factor)


def test_megatron_refuses_a_floor_above_the_start() -> None:
    with pytest.raises(ValueError, match="expected 0 < min_scale <= init"):
        dialects.get("megatron.core.DynamicGradScaler", init=1.0, min_scale=2.0)


def test_hysteresis_means_five_different_things() -> None:
    """Overflow, clean, overflow, with patience 2: who backs off?"""
    scalers = {
        "megatron.core.DynamicGradScaler": {"hysteresis": 2},
        "colossalai.DynamicGradScaler": {"hysteresis": 2},
        "deepspeed.DynamicLossScaler": {"delayed_shift": 2},
        "nemo.GradScaler": {"hysteresis": 2},
        "paddle.amp.GradScaler[dygraph]": {"decr_every_n_nan_or_inf": 2},
        "tf.contrib.ExponentialUpdateLossScaleManager": {"decr_every_n_nan_or_inf": 2, "backoff": 0.5},
    }
    last = {
        name: [replay(dialects.get(name, init=1024.0, **more), history)[-1] for history in ([1, 0, 1], [1, 1, 1])]
        for name, more in scalers.items()
    }
    assert last == {
        "megatron.core.DynamicGradScaler": [512.0, 256.0],
        "colossalai.DynamicGradScaler": [512.0, 256.0],
        "deepspeed.DynamicLossScaler": [512.0, 256.0],
        "nemo.GradScaler": [1024.0, 256.0],
        "paddle.amp.GradScaler[dygraph]": [1024.0, 512.0],
        "tf.contrib.ExponentialUpdateLossScaleManager": [512.0, 512.0],
    }


def test_flax_grows_one_clean_step_late() -> None:
    assert replay(dialects.get("flax.DynamicScale", interval=3), [0] * 8).tolist() == (
        [65536.0] * 3 + [131072.0] * 4 + [262144.0]
    )


def test_deepspeed_grows_late_only_after_the_start_and_after_an_overflow() -> None:
    rule = dialects.get("deepspeed.DynamicLossScaler", init=4.0, interval=2, delayed_shift=1)
    assert replay(rule, [0, 0, 0, 0, 0, 1, 0, 0, 0]).tolist() == [4, 4, 8, 8, 16, 8, 8, 8, 16]


def test_jmp_loses_its_floor_under_jit() -> None:
    eager, jit = (
        replay(dialects.get("jmp.DynamicLossScale", init=4.0, min_loss_scale=2.0**-10, jit=jit), [1] * 6)[-1]
        for jit in (False, True)
    )
    assert (eager, jit) == (0.0625, 1.0)


def test_unguarded_scalers_reach_inf_and_never_return() -> None:
    rule = dialects.get("keras.LossScaleOptimizer[torch]", init=2.0**126, interval=1)
    assert replay(rule, [0, 0, 1, 1])[1:].tolist() == [math.inf] * 3
    assert replay(dialects.get("torch.amp.GradScaler", init=2.0**126, interval=1), [0, 0]).max() == 2.0**127


def test_flax_saturates_and_its_mantissa_never_recovers() -> None:
    scales = replay(dialects.get("flax.DynamicScale", init=2.0**127, interval=1), [0, 0, 1])
    assert scales.tolist() == [2.0**127, FP32.max_finite, FP32.max_finite / 2]


def test_roundpipe_pays_for_an_overflow_twice() -> None:
    """Overflow iff the scale in force is above 1000: torch needs 7 skips from 65536, depth one needs 8."""
    counts = {}
    for name in ("torch.amp.GradScaler", "roundpipe.GradScaler[async]"):
        from ampsim import init, update

        rule = dialects.get(name)
        state, skips = init(rule), 0
        for _ in range(50):
            found = state.scale > 1000
            skips += found
            state = update(rule, state, found)
        counts[name] = (skips, state.scale)
    assert counts == {"torch.amp.GradScaler": (7, 512.0), "roundpipe.GradScaler[async]": (8, 256.0)}


@pytest.mark.parametrize(
    ("name", "parameters", "history", "error", "text"),
    [
        ("deepspeed.DynamicLossScaler", {"init": 2.0, "delayed_shift": 1}, [1, 1], Exception, "already at minimum"),
        ("fairseq.DynamicLossScaler", {"init": 4.0, "min_loss_scale": 1.0}, [1, 1], FloatingPointError, r"\(1\.0\)"),
        ("mindspore.amp.DynamicLossScaleManager", {}, [1] * 1001, RuntimeError, "Continuous overflow"),
    ],
)
def test_scalers_that_give_up(
    name: str, parameters: dict[str, float], history: list[int], error: type[Exception], text: str
) -> None:
    rule = dialects.get(name, **parameters)
    with pytest.raises(error, match=text) as raised:
        replay(rule, history)
    assert f"raised by update {len(history) - 1} of {len(history)}" in raised.value.__notes__[0]
    assert len(list(states(rule, history[:-1]))) == len(history) - 1  # one fewer does not raise
