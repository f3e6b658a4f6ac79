"""What a finding of a loop is read from: arrays that differ, and targets that are loaded."""

import numpy as np
import pytest

from ampsim.testing.check import BrokenError
from ampsim.testing.load import load
from ampsim.testing.loop.state import Difference

LEFT = np.array([1.0, -2.0, 4.0], np.float32)


def difference(name, times, before=0.0):
    """A change that is so many times as large."""
    start = np.full(3, before, np.float32)
    return Difference(name, start + LEFT, start + np.float32(times) * LEFT, start)


def test_difference_factor_is_relative_to_change():
    for times in (-3.0, 0.25, 256.0):
        assert difference("model.x", times, before=8.0).factor() == times
        assert difference("logged.x", times, before=8.0).factor() is None
        assert (
            Difference("logged.x", LEFT, LEFT * np.float32(times), LEFT).factor()
            == times
        )
    assert Difference("x", LEFT, LEFT[::-1].copy()).factor() is None
    assert Difference("x", 0 * LEFT, LEFT).factor() is None
    moved = Difference("x", LEFT, LEFT + np.array([0.5, 3.0, 1.0], np.float32))
    assert str(moved) == "x[1] is 1.0, expected -2.0"


def test_import_target_names_missing_module(tmp_path, monkeypatch):
    assert load("ampsim.testing.check:BrokenError.__name__") == BrokenError.__name__
    (tmp_path / "needs_more.py").write_text("import nowhere_installed")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValueError, match=r"^needs_more: .*nowhere_.*install it in this environment"
    ):
        load("needs_more:X")
    with pytest.raises(
        ValueError,
        match="; run in the folder of nowhere_installed",
    ):
        load("nowhere_installed:X")
