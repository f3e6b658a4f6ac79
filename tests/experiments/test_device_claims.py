"""Each claim is a run: it holds on this CPU, and not of a scaler that does otherwise; an error is a result."""

from typing import Any

import pytest
import torch

from ampsim.core import json_lines
from ampsim.torch import GradScaler
from experiments import device_claims
from experiments.claims import claim as _claims
from experiments.claims import numbers, scalers, steps, training

SCALERS = {**scalers.CLAIMS, **steps.CLAIMS}
CONFIG = device_claims.Config()


def looked(arm: str) -> dict[str, Any]:
    return device_claims.run(CONFIG, device_claims.Arm(arm), 0, "cpu", lambda _: None)


@pytest.mark.parametrize("arm", SCALERS)
def test_scaler_claim_holds_on_cpu(arm: str) -> None:
    record = looked(arm)
    assert record["holds"], device_claims.differences(record["expected_from_cpu"], record["seen"])


@pytest.mark.parametrize("arm", training.CLAIMS)
def test_emulated_card_fulfills_predictions(arm: str) -> None:
    pytest.importorskip(
        "numba", reason="the kernels are compiled: pip install 'ampsim[experiments]'"
    )
    record = looked(arm)
    assert record["holds"], device_claims.differences(record["expected_from_cpu"], record["seen"])


def test_overflowing_card_fails_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    original = training.differentiate

    def overflowing(task: Any, batch: Any, scale: float) -> Any:
        return original(task, batch, 64 * scale)

    monkeypatch.setattr(training, "RECIPES", {"sigmoid": training.RECIPES["sigmoid"]})
    monkeypatch.setattr(training, "differentiate", overflowing)
    training.compare.cache_clear()
    assert not looked("overflows at equal weights")["holds"]
    training.compare.cache_clear()


@pytest.mark.parametrize("arm", numbers.CLAIMS)
def test_number_claim_has_expected_keys(arm: str) -> None:
    record = looked(arm)  # another CPU may round and flush otherwise
    assert record["seen"].keys() == record["expected_from_cpu"].keys()


ABOUT_TORCH = [
    "torch at scale 2 to minus 128", "torch below scale 1", "torch collapse", "torch at scale 0",
]  # fmt: skip


@pytest.mark.parametrize("arm", ABOUT_TORCH)
def test_torch_claim_fails_for_ampsim(arm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalers, "theirs", GradScaler)
    monkeypatch.setattr(torch.amp, "GradScaler", GradScaler)
    assert not looked(arm)["holds"]


ABOUT_OURS = [
    "ours at the lowest scale", "ours below scale 1", "ours does not collapse", "momentum of a skipped first step",
    "fused step that raised", "update before backward",
]  # fmt: skip


@pytest.mark.parametrize("arm", ABOUT_OURS)
def test_ampsim_claim_fails_for_torch(arm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Theirs(torch.amp.GradScaler):
        """Torch's, with what a claim asks of ours beside torch's methods."""

        def begin_iteration(self) -> Any:
            return type(
                "Ticket",
                (),
                {"value": type("Value", (), {"scale_on": lambda _, device: self._scale})()},
            )()

        def step(self, optimizer: Any, *args: Any, ticket: Any = None, **options: Any) -> Any:
            return super().step(optimizer, *args, **options)

        def update(self, new_scale: Any = None, ticket: Any = None) -> None:
            super().update(new_scale)

    for module in (scalers, steps):
        monkeypatch.setattr(module, "ours", Theirs)
    monkeypatch.setattr(steps, "AsyncGradScaler", Theirs)
    assert not looked(arm)["holds"]


def test_flushed_subnormals_are_detected() -> None:
    flush = torch.set_flush_denormal(True)
    try:
        if not flush:
            pytest.skip("this CPU cannot flush")
        assert not looked("subnormal gradient")["holds"]
    finally:
        torch.set_flush_denormal(False)


def test_error_is_recorded_as_result(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = _claims.Claim("None.", 1, lambda device: 1 / 0)
    monkeypatch.setitem(device_claims.CLAIMS, "none", claim)
    record = looked("none")
    assert not record["holds"]
    assert record["seen"] == {"error": "ZeroDivisionError: division by zero"}
    json_lines.encode(record)


def test_claims_are_the_frozen_ones() -> None:
    # A changed prediction is a new prediction: set FROZEN to the new digest, with today's date.
    assert device_claims.digest() == device_claims.FROZEN


def test_number_outside_range_differs() -> None:
    expected = {"a": _claims.within(-1, 1), "b": _claims.within(0, 0)}
    assert device_claims.differences(expected, {"a": 1, "b": 0}) == {}
    assert device_claims.differences(expected, {"a": 2, "b": 0}) == {"a": [expected["a"], 2]}
    assert device_claims.differences(expected["a"], {"error": "x"}) != {}
    assert device_claims.differences(expected["a"], float("nan")) != {}


def test_verdict_names_failed_claims() -> None:
    rows = [{"arm": "x", "holds": True, "claims": "0"}, {"arm": "y", "holds": False, "claims": "0"}]
    assert device_claims.verdict(rows).endswith("; failed: y")
    assert f"changed since {device_claims.FROZEN}" in device_claims.verdict(rows)
    rows[0]["claims"] = device_claims.FROZEN
    assert "frozen" in device_claims.verdict(rows[:1])


def test_differences_name_the_place() -> None:
    expected = {"a": {"b": [1, float("nan")], "c": 2}, "d": 3}
    assert device_claims.differences(expected, {"a": {"b": [1, float("nan")], "c": 5}, "d": 3}) == {
        "a.c": [2, 5]
    }
    assert device_claims.differences(expected, {"error": "x"}) == {"": [expected, {"error": "x"}]}
    assert device_claims.differences(1, 1) == {}
