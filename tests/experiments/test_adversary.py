"""What corrupts is counted, the histories are those that were promised, and ours is never corrupted."""

import math
from itertools import islice
from typing import Any

import pytest
import torch

from experiments import adversary
from figures import results

COMMITTED = results.load("adversary").records


def rows(scaler: str) -> list[dict[str, Any]]:
    return [row for row in COMMITTED if row["arm"].startswith(scaler)]


@pytest.mark.deep
def test_a_million_steps_never_corrupt_ours() -> None:
    config = adversary.Config(steps=170_000)
    arms = [arm for arm in adversary.arms(config).values() if arm.scaler == "ampsim"]
    units = [adversary.run(config, arm, 1, "cpu", lambda step: None) for arm in arms]
    assert sum(unit["steps"] for unit in units) >= 1_000_000
    assert sum(unit["corruptions"] for unit in units) == 0


def test_the_committed_run_of_ours_is_long_and_its_scale_stays_normal() -> None:
    assert sum(row["steps"] for row in rows("ampsim")) >= 150_000
    assert all(2.0**-126 <= row["lowest_scale"] <= row["highest_scale"] <= 2.0**127 for row in rows("ampsim"))


def test_torch_is_corrupted_by_the_first_clean_step_after_144_overflows() -> None:
    (row,) = [row for row in rows("torch") if row["arm"].endswith(adversary.SWEEP)]
    assert row["first_corruption"] == 144
    for overflows, finite in ((143, True), (144, False)):
        run = adversary.Run("torch")
        for _ in range(overflows):
            assert run.step(torch.full((4,), math.inf))
        assert run.step(torch.ones(4)) is finite


def test_a_corrupting_scaler_is_counted_and_its_run_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless:
        """Steps whatever the gradient is."""

        def __init__(self, device: str, init_scale: float = 1.0, growth_interval: int = 1) -> None: ...
        def scale(self, loss: torch.Tensor) -> torch.Tensor:
            return loss

        def step(self, optimizer: torch.optim.Optimizer) -> None:
            optimizer.step()

        def update(self) -> None: ...
        def get_scale(self) -> float:
            return 1.0

    monkeypatch.setitem(adversary.MAKERS, "careless", Careless)
    config = adversary.Config(steps=40)
    arm = adversary.Arm("careless", "overflow and clean in turns")
    row = adversary.run(config, arm, 0, "cpu", lambda step: None)
    assert row["corruptions"] == row["overflows"] == 20
    assert row["first_corruption"] == 0


def test_both_scalers_get_the_same_histories() -> None:
    config = adversary.Config(steps=500, longest=5)
    for family in adversary.FAMILIES:
        pair = [
            adversary.run(config, adversary.Arm(maker, family), 0, "cpu", lambda step: None)
            for maker in adversary.MAKERS
        ]
        assert pair[0]["steps"] == pair[1]["steps"] == 500
        assert pair[0]["overflows"] == pair[1]["overflows"]


def test_words_mean_what_they_say() -> None:
    for word, values in adversary.VALUES.items():
        drawn = islice(adversary.gradients(adversary.Coin(0), iter([word] * 40)), 40)
        assert {str(float(g[0])) for g in drawn} == {str(float(torch.tensor(value))) for value in values}
    assert all(0 < abs(float(torch.tensor(v))) < 2.0**-126 for v in adversary.VALUES["subnormal"])
    assert all(math.isfinite(float(torch.tensor(v))) for v in adversary.VALUES["huge"])
