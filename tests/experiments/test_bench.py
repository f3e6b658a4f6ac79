"""Both sides of a benchmark compute the same thing, or none is timed; nothing asserts a time."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType

import numpy as np
import pytest
import torch

from ampsim.runs.record import data_file
from ampsim.torch import GradScaler
from experiments.bench import commands, replay, report, step
from experiments.bench.report import Row, measure_arms


def needing(name: str, *packages: str) -> ModuleType:
    """Return a benchmark whose packages are there."""
    for package in packages:
        pytest.importorskip(package)
    return importlib.import_module(f"experiments.bench.{name}")


def test_arms_take_turns_after_warm_up() -> None:
    turns: list[str] = []
    times = {"bare": iter([9.0, 1.0, 2.0, 3.0]), "ours": iter([99.0, 5.0, 9.0, 8.0])}

    def once(arm: str) -> float:
        turns.append(arm)
        return next(times[arm])

    @contextmanager
    def trial() -> Iterator[dict[str, Callable[[], float]]]:
        yield {arm: partial(once, arm) for arm in times}

    medians = measure_arms(trial, rounds=3, trials=1, above="bare", warm_up=1)
    assert medians == {"bare": [0.0], "ours": [5.0]}  # the median of 4, 7, and 5
    assert turns == ["bare", "ours", "ours", "bare"] * 2


def test_step() -> None:
    rows = step.measure(("3x100",), rounds=2, trials=1)
    assert [row.against for row in rows] == ["torch", "floor", "torch"]


def test_different_norm_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = GradScaler.unscale_and_clip_
    monkeypatch.setattr(
        GradScaler, "unscale_and_clip_", lambda *args: 1.01 * whole(*args)
    )
    with pytest.raises(RuntimeError, match="norms of 3x100"):
        step.measure(("3x100",), rounds=2, trials=1)


def test_replay() -> None:
    assert len(replay.measure(steps=20_000, rounds=1, trials=1)) == 6


def test_different_replay_rule_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = replay.replay_thresholds
    monkeypatch.setattr(
        replay,
        "replay_thresholds",
        lambda rule, thresholds: ours(rule.replace(backoff_factor=0.25), thresholds),
    )
    with pytest.raises(RuntimeError, match="replay of"):
        replay.measure(steps=20_000, rounds=1, trials=1)


@pytest.mark.framework
def test_jax_step(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = needing("jax_step", "jax", "flax", "jmp", "optax")
    rows = bench.measure(("1x8",), ("1x8",), rounds=2, trials=1)
    assert len(rows) == 2 * len(bench.PAIRS)
    wrong = bench.optax.sgd(2e-3, momentum=0.9)
    monkeypatch.setitem(bench.ARMS, "apply_if_finite", (bench.constant(wrong), wrong))
    with pytest.raises(RuntimeError, match="parameters, apply_if_finite"):
        bench.measure(("1x8",), (), rounds=2, trials=1)


def test_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = needing("watching", "wandb")
    assert len(bench.measure(("1x8",), rounds=1, trials=1)) == 4
    monkeypatch.setattr(
        bench, "histograms", lambda model: next(model.parameters()).data.add_(1)
    )
    with pytest.raises(RuntimeError, match="parameters, floor"):
        bench.measure(("1x8",), rounds=1, trials=1)


def test_commands() -> None:
    rows = commands.measure(lines=50, files=1, trials=1)
    assert [row.theirs for row in rows] == [[8.0], [200.0], [30.0]]


@pytest.mark.parametrize(("goal", "met"), [(2.0, "2, met"), (2.1, "2.1, not met")])
def test_goal_uses_median_trial(goal: float, met: str) -> None:
    row = Row("work", "framework", "us", [1.0, 4.0, 1.0], [2.0, 1.0, 2.0], goal)
    assert row.cells()[-1] == met


def test_rows_are_written_with_their_origin(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    report.run("step", lambda: [Row("work", "framework", "us", [1.0], [2.0])])
    origin, rows = data_file.read(tmp_path / "step.jsonl")
    assert origin["versions"]["torch"] == torch.__version__
    assert np.array_equal(rows[0]["theirs"], [2.0])
