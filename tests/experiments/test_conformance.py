"""The committed verdicts, and a scaler with a planted bug."""

from typing import Any

import pytest
import torch

from ampsim.testing import known
from ampsim.testing.kit import judge
from experiments import conformance
from figures import results

DATA = {row["arm"]: row for row in results.load("conformance").records}


def test_torch_fails_what_is_known_and_ours_nothing() -> None:
    without_tickets = "gradients_keep_their_scale_behind_a_queue"  # asked of every scaler when the data was made
    assert DATA["torch"]["failed"].keys() - {without_tickets} == known.TORCH.keys()
    assert not DATA["ampsim depth=1"]["failed"]
    assert DATA["ampsim policy=torch"]["failed"].keys() - {without_tickets} < known.TORCH.keys()


def test_every_check_was_asked_and_counted() -> None:
    names = {check.name for check in judge.chosen()}
    for arm in ("torch", "ampsim", "ampsim policy=torch"):
        assert DATA[arm]["checks"].keys() == names
    for row in DATA.values():
        assert sum(row["counts"].values()) == len(row["checks"])
        assert row["counts"].get("failed", 0) == len(row["failed"])


def test_a_planted_bug_is_a_failure_with_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Grows(torch.amp.GradScaler):
        def update(self, new_scale: Any = None) -> None:
            super().update(new_scale)
            self._scale = self._scale * 2

    monkeypatch.setitem(conformance.MAKERS, "planted", lambda arm: Grows)
    monkeypatch.setattr(conformance, "LEVELS", conformance.LEVELS[:1])
    row = conformance.run(conformance.Config(steps=5), conformance.Arm("planted"), 0, "cpu", lambda step: None)
    assert "overflow_backs_off_once" in row["failed"]
    assert "->" in row["failed"]["overflow_backs_off_once"]["seen"]
    assert conformance.table([{"arm": "planted", **row}]).row_count == 1
