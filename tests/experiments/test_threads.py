"""The counter counts what is planted, the smoke run ends, and the committed data shows what is
claimed.
"""

from typing import Any

import pytest
import torch

from experiments import threads
from experiments.training import two_threads

SMALL = threads.Config(steps=30, intervals=1)


def unit(
    scaler: str, depth: int = 1, interval: int = 2, config: threads.Config = SMALL
) -> dict[str, Any]:
    return threads.run(
        config, threads.Arm(scaler, depth, interval), 0, "cpu", lambda step: None
    )


class Planted(two_threads.Tickets):
    """Ours, with the gradients of passes 5 and 9 divided once more: by 2, and by the scale."""

    passes = 0

    def unscale(
        self, optimizer: torch.optim.Optimizer, iteration: two_threads.Iteration
    ) -> None:
        super().unscale(optimizer, iteration)
        divisor = {5: 2.0, 9: iteration["ticket"].value.scale}.get(self.passes, 1.0)
        self.passes += 1
        for p in optimizer.param_groups[0]["params"]:
            p.grad.div_(divisor)


def test_seeded_faults_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(two_threads.MAKERS, "planted", Planted)
    clean, planted = unit("ampsim"), unit("planted")
    assert planted == clean | {"wrong": 2, "divided_twice": 1}
    assert clean["wrong"] == 0
    assert clean["checked"] + clean["skipped"] == SMALL.steps


class Failing(two_threads.Tickets):
    def finish(
        self, optimizer: torch.optim.Optimizer, iteration: two_threads.Iteration
    ) -> float:
        if iteration["ticket"].index == 3:
            raise RuntimeError("planted")
        return super().finish(optimizer, iteration)


def test_thread_errors_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(two_threads.MAKERS, "failing", Failing)
    row = unit("failing")
    assert row["errors_optimizing"] >= 1
    assert row["errors_computing"] >= SMALL.steps - 6
    assert row["lost_updates"] >= 1


class Forgetful(two_threads.Tickets):
    def finish(
        self, optimizer: torch.optim.Optimizer, iteration: two_threads.Iteration
    ) -> float:
        before = self.scaler.get_scale()
        after = super().finish(optimizer, iteration)
        return before if iteration["ticket"].index == 4 else after


def test_a_lost_update_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(two_threads.MAKERS, "forgetful", Forgetful)
    assert unit("forgetful", interval=1)["lost_updates"] == 1


def test_ampsim_record_ignores_schedule() -> None:
    first, *others = [unit("ampsim", 2) for _ in range(3)]
    assert all(other == first for other in others)
