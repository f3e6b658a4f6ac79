"""Two frameworks, one run: the states are equal, and a difference is not passed over."""

import importlib
import itertools

import pytest

from ampsim import Rule, init, update

pytest.importorskip("jax")
pytest.importorskip("optax")
interop = importlib.import_module("experiments.interop")

CONFIG = interop.Config(steps=60, growth_interval=5, init_scale=2.0**22)


@pytest.mark.parametrize("arm", interop.ARMS)
def test_both_scalers_follow_the_reference_and_the_network_learns(arm) -> None:
    record = interop.run(CONFIG, interop.ARMS[arm], 0, "cpu", lambda _: None)
    state = init(interop.rule_of(CONFIG))
    for step in range(CONFIG.steps):
        state = update(interop.rule_of(CONFIG), state, step in record["found_inf"])
    assert record["torch_state"] == record["jax_state"]
    assert (record["torch_state"]["scale"], record["torch_state"]["_growth_tracker"]) == (
        state.scale,
        state.growth_tracker,
    )
    scales = [scale for _, scale in record["scale_changes"]]
    assert any(a < b for a, b in itertools.pairwise(scales))
    assert any(a > b for a, b in itertools.pairwise(scales))
    assert record["loss"][-1] < record["loss"][0]


@pytest.mark.parametrize("arm", interop.ARMS)
def test_a_difference_ends_the_run(arm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop, "rule_of", lambda _: Rule(2.0**22, growth_interval=6, min_scale=2.0**-126))
    with pytest.raises(AssertionError, match=r"step \d+: JAX's scaler is at .* torch's at .*: expected the same"):
        interop.run(CONFIG, interop.ARMS[arm], 0, "cpu", lambda _: None)
