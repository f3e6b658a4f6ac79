"""Dialects: names, parameters, refusals, and what each reproduces of its framework."""

import math
import re

import pytest

from ampsim import Rule, dialects, replay
from ampsim.core.replay.fold import states

BOUNDS = {"min_scale": 2.0, "max_scale": 8.0}


def test_dialects_have_sources_and_rules() -> None:
    for name in dialects.names():
        assert dialects.ALL[name].source
        assert isinstance(dialects.get(name), Rule)


def test_torch_defaults_match_rule_defaults() -> None:
    assert dialects.get("torch.amp.GradScaler") == Rule()
    given = dialects.get(
        "torch.amp.GradScaler",
        init_scale=65536.0,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
    )
    assert given == Rule()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("flax.DynamicScal", "flax.DynamicScale"),
        ("flax", "flax.DynamicScale"),
        (3, "3"),
    ],
)
def test_unknown_dialect_raises(name, shown) -> None:
    with pytest.raises(dialects.UnknownDialectError, match=re.escape(shown)):
        dialects.get(name)


@pytest.mark.parametrize(
    ("name", "parameters", "error", "shown"),
    [
        ("nemo.GradScaler", {"hysteresys": 2}, TypeError, "'hysteresis'"),
        ("keras.LossScaleOptimizer[torch]", {"factor": 3.0}, ValueError, "factor=3.0"),
        ("jmp.DynamicLossScale", {"factor": 0.5}, ValueError, "factor=0.5"),
        ("jmp.DynamicLossScale", {"factor": math.nan}, ValueError, "factor=nan"),
        (
            "megatron.core.DynamicGradScaler",
            {"init_scale": 1.0, "min_scale": 2.0},
            ValueError,
            "min_scale=2.0",
        ),
        (
            "fairscale.LayerwiseGradientScaler",
            {"init_scale": 1.0, **BOUNDS},
            ValueError,
            "init_scale=1.0",
        ),
        (
            "fairscale.LayerwiseGradientScaler",
            {"init_scale": 16.0, **BOUNDS},
            ValueError,
            "init_scale=16.0",
        ),
        (
            "openseq2seq.BackoffScaler",
            {"growth_interval": 2, "step_window": 3},
            ValueError,
            "step_window=3",
        ),
        (
            "guided_diffusion.MixedPrecisionTrainer",
            {"growth": 1.5},
            ValueError,
            "growth=1.5",
        ),
        (
            "colossalai.DynamicGradScaler",
            {"hysteresis": False},
            TypeError,
            "hysteresis=False",
        ),
    ],
)
def test_invalid_parameters_raise_as_framework(name, parameters, error, shown) -> None:
    with pytest.raises(error, match=re.escape(shown)):
        dialects.get(name, **parameters)


def test_fairscale_scale_stays_within_bounds() -> None:
    rule = dialects.get(
        "fairscale.LayerwiseGradientScaler", init_scale=8.0, growth_interval=1, **BOUNDS
    )
    assert replay(rule, [0, 1, 1, 1]).tolist() == [8.0, 4.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("name", "parameters", "history", "error", "text"),
    [
        (
            "deepspeed.DynamicLossScaler",
            {"init_scale": 2.0, "delayed_shift": 1},
            [1, 1],
            Exception,
            "already at minimum",
        ),
        (
            "deepspeed.DynamicLossScaler",
            {"init_scale": 1.0, "delayed_shift": 2},
            [1, 1],
            Exception,
            "already at minimum",
        ),
        (
            "fairseq.DynamicLossScaler",
            {"init_scale": 4.0, "min_loss_scale": 1.0},
            [1, 1],
            FloatingPointError,
            r"\(1\.0\)",
        ),
        (
            "mindspore.amp.DynamicLossScaleManager",
            {},
            [1] * 1001,
            RuntimeError,
            "Continuous overflow",
        ),
    ],
)
def test_minimum_scale_errors_match_frameworks(
    name: str,
    parameters: dict[str, float],
    history: list[int],
    error: type[Exception],
    text: str,
) -> None:
    rule = dialects.get(name, **parameters)
    with pytest.raises(error, match=text) as raised:
        replay(rule, history)
    assert (
        f"raised by update {len(history) - 1} of {len(history)}"
        in raised.value.__notes__[0]
    )
    assert (
        len(list(states(rule, history[:-1]))) == len(history) - 1
    )  # one fewer does not raise


@pytest.mark.parametrize(
    ("name", "parameters", "history", "expected"),
    [
        (
            "mpx.DynamicLossScaling",
            {"init_scale": 2.0, "min_loss_scaling": None},
            [1, 1],
            [1.0, 0.5],
        ),
        (
            "openseq2seq.BackoffScaler",
            {"step_window": 2, "scale_max": 8.0},
            [1, 0, 0],
            [4.0, 4.0, 8.0],
        ),
    ],
)
def test_dialect_options_change_scales(name, parameters, history, expected) -> None:
    assert replay(dialects.get(name, **parameters), history).tolist() == expected


def test_jmp_under_jit_ignores_minimum() -> None:
    # Its pytree leaves min_loss_scale out, so a compiled step has the default of 1.
    options = {"init_scale": 16.0, "min_loss_scale": 4.0}
    outside = dialects.get("jmp.DynamicLossScale", **options)
    inside = dialects.get("jmp.DynamicLossScale", jit=True, **options)
    assert replay(outside, [True] * 6).tolist()[-1] == 4.0
    assert replay(inside, [True] * 6).tolist()[-1] == 1.0


def test_fairseq_tolerance_delays_minimum_error() -> None:
    # A tolerated overflow keeps the scale, so it does not reach the minimum.
    tolerant = dialects.get(
        "fairseq.DynamicLossScaler", init_scale=2.0**-13, tolerance=0.6
    )
    assert replay(tolerant, [False, True]).tolist() == [2.0**-13, 2.0**-13]
    with pytest.raises(FloatingPointError):
        replay(
            dialects.get("fairseq.DynamicLossScaler", init_scale=2.0**-13),
            [False, True],
        )
