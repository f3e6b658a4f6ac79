"""What a finding of a loop is read from: arrays that differ, the cause they tell, and rows."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from ampsim.testing.check import BrokenError
from ampsim.testing.load import load
from ampsim.testing.loop.check import Broken
from ampsim.testing.loop.checks.skipped import HIDDEN, MIXED
from ampsim.testing.loop.patterns import cause_of
from ampsim.testing.loop.rows import halved, with_inf
from ampsim.testing.loop.state import Difference

LEFT = np.array([1.0, -2.0, 4.0], np.float32)


def difference(name, times, before=0.0):
    """A change that is so many times as large."""
    start = np.full(3, before, np.float32)
    return Difference(name, start + LEFT, start + np.float32(times) * LEFT, start)


SCALE, SKIP = "gradients_do_not_depend_on_loss_scale", "skipped_step_changes_nothing"
RESUME, SPLIT = "resume_is_exact", "micro_batches_equal_one_batch"


@pytest.mark.parametrize(
    ("check", "name", "times", "known", "said"),
    [
        (SCALE, "logged.grad_norm", 256.0, "", "the norm is of scaled gradients"),
        (SCALE, "logged.loss", 256.0, "", "the scaled loss is logged"),
        (SCALE, "optimizer.exp_avg_sq", 2.0**16, "", "a second moment"),
        (SCALE, "model.weight", 2.0**16, "", "scaled twice"),
        (SCALE, "model.weight", 256.0, "", "never unscaled"),
        (SCALE, "model.weight", 2.0**-8, "", "1/S as large"),
        (SCALE, "model.weight", 2.0**-16, "", "1/S^2 as large"),
        (SCALE, "model.weight", 192.0, "", "no single power of S"),
        (SKIP, "model.weight", 2.0, MIXED, MIXED),
        (SKIP, "scheduler.last_epoch", 2.0, MIXED, "the schedule advances"),
        (SKIP, "ema.weight", 2.0, MIXED, "the average is updated"),
        (SKIP, "logged.loss", 2.0, HIDDEN, "the logged value comes from"),
        (SKIP, "model.weight", 2.0, HIDDEN, HIDDEN),
        (SKIP, "momentum", 2.0, "", "the optimizer's state is updated before"),
        (SKIP, "steps", 2.0, "", "it changes although the step was skipped"),
        (RESUME, "scaler.scale", 2.0, "", "the scaler's state is not saved"),
        (RESUME, "model.weight", 2.0, "", "it is not saved"),
        (SPLIT, "steps", 2.0, "", "it changes with each micro-batch"),
        (SPLIT, "model.weight", 2.0, "", "the loss of a micro-batch is not divided"),
        (SPLIT, "steps", 2.0, "the check knows", "the check knows"),
    ],
)
def test_cause_follows_from_the_difference(check, name, times, known, said):
    found = [difference("model.bias", 1.25)] * (times != 2.0) + [difference(name, times)]
    cause, shown = cause_of(check, Broken("here", 0, found, 256.0, cause=known))
    assert said in cause
    assert shown is found[0 if "no single" in said else -1]  # which is the one that tells


def test_difference_factor_is_relative_to_change():
    for times in (-3.0, 0.25, 256.0):
        assert difference("model.x", times, before=8.0).factor() == times
        assert difference("logged.x", times, before=8.0).factor() is None
        assert Difference("logged.x", LEFT, LEFT * np.float32(times), LEFT).factor() == times
    assert Difference("x", LEFT, LEFT[::-1].copy()).factor() is None
    assert Difference("x", 0 * LEFT, LEFT).factor() is None
    assert difference("x", 3.0).size() == 2.0
    assert Difference("x", LEFT, None).size() == Difference("x", 0 * LEFT, LEFT).size() == math.inf
    moved = Difference("x", LEFT, LEFT + np.array([0.5, 3.0, 1.0], np.float32))
    assert str(moved).startswith("x[1] is 1.0, expected -2.0, 3 apart, 0.75 of")


class Pair(NamedTuple):
    data: Any
    target: Any


@pytest.mark.parametrize("kind", [lambda *each: each, Pair, lambda *each: dict(enumerate(each))])
def test_rows_of_a_batch_stay_together(kind):
    data, target = np.arange(8.0).reshape(4, 2), np.arange(4)
    batch = kind(data, target)

    def parts(held):
        assert type(held) is type(batch)
        return [*(held.values() if isinstance(held, dict) else held)]

    halves = map(parts, halved(batch, 2))
    for (rows, marks), at in zip(halves, (slice(0, 2), slice(2, 4)), strict=True):
        assert (rows.tolist(), marks.tolist()) == (data[at].tolist(), target[at].tolist())
    assert halved(batch, 3) is halved(kind(data, target[:3]), 2) is None
    rows, marks = parts(with_inf(batch))
    assert (rows[-1, -1], rows[:-1].tolist()) == (math.inf, data[:-1].tolist())
    assert data[-1, -1] == 7.0


def test_import_target_names_missing_module(tmp_path, monkeypatch):
    assert load("ampsim.testing.check:BrokenError.__name__") == BrokenError.__name__
    (tmp_path / "needs_more.py").write_text("import nowhere_installed")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"^needs_more: .*nowhere_.*install what it needs"):
        load("needs_more:X")
    with pytest.raises(ValueError, match="no module 'nowhere_installed'; run from its folder"):
        load("nowhere_installed:X")
