"""Dialects: names, parameters, refusals, and what each reproduces of its framework."""

import math
import re
from pathlib import Path

import pytest

from ampsim import Rule, dialects, replay
from ampsim.core.arguments import nearest
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


def test_a_name_that_is_no_text_is_unknown() -> None:
    said = rf"unknown dialect 3: expected one of .*, .* and {len(dialects.ALL) - 5} more$"
    with pytest.raises(dialects.UnknownDialectError, match=said):
        dialects.get(3)  # type: ignore[arg-type]


def test_the_readme_counts_the_dialects() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    assert re.findall(r"(\d+) of them, reproduced", text) == [str(len(dialects.ALL))]


def test_a_part_of_a_name_names_the_whole() -> None:
    with pytest.raises(dialects.UnknownDialectError, match=r"'flax': did you mean 'flax.DynamicScale'"):
        dialects.get("flax")


def test_a_part_of_a_name_is_found_in_any_case_and_of_many_five() -> None:
    assert nearest("ABC", ["x" * 20 + "aBc"]) == f"did you mean {'x' * 20 + 'aBc'!r}?"
    long = [f"{number}{'x' * 20}part" for number in range(7)]
    assert nearest("part", long) == f"did you mean {' or '.join(map(repr, long[:5]))}?"
    assert nearest("ab", ["x" * 20 + "ab"]) == f"expected one of {'x' * 20}ab"


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
    assert dialects.get("megatron.core.DynamicGradScaler", init=1.0, min_scale=1.0).min_scale == 1.0
    with pytest.raises(ValueError, match="expected 0 < min_scale <= init"):
        dialects.get("megatron.core.DynamicGradScaler", init=1.0, min_scale=2.0)


def test_nnabla_counts_anew_late_and_jaxamp_is_late_each_time() -> None:
    clean, again = [0] * 8, [1, *[0] * 5]
    nnabla = replay(dialects.get("nnabla.DynamicLossScalingUpdater", interval=2), clean + again)
    assert nnabla.tolist() == [8, 8, 8, 16, 16, 16, 32, 32, 16, 16, 16, 16, 32, 32]
    jaxamp = replay(dialects.get("jaxamp.DynamicScalerState", init=8.0, interval=2), clean + again)
    assert jaxamp.tolist() == [8, 8, 16, 16, 16, 32, 32, 32, 16, 16, 16, 32, 32, 32]


def test_fairscale_refuses_a_start_beyond_its_bounds() -> None:
    name, bounds = "fairscale.LayerwiseGradientScaler", {"min_scale": 2.0, "max_scale": 8.0}
    assert replay(dialects.get(name, init=8.0, interval=1, **bounds), [0, 1, 1, 1]).tolist() == [8.0, 4.0, 2.0, 2.0]
    for start in (1.0, 16.0):
        with pytest.raises(ValueError, match=r"init=.*: expected a scale from 2\.0 to 8\.0; move init or the bounds"):
            dialects.get(name, init=start, **bounds)


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
