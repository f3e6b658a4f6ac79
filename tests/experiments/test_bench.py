"""Both sides of a benchmark compute the same thing, or none is timed; nothing asserts a time."""

import dataclasses
import importlib
from types import ModuleType

import numpy as np
import pytest
import torch

from ampsim.runs.record import data_file
from ampsim.torch import GradScaler
from experiments.bench import commands, replay, report, step
from experiments.bench.report import SHARE, SPEEDUP, TIME, Row


def needing(name: str, *packages: str) -> ModuleType:
    """Return a benchmark whose packages are there."""
    for package in packages:
        pytest.importorskip(package)
    return importlib.import_module(f"experiments.bench.{name}")


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


@pytest.mark.parametrize("factor", ["growth_factor", "backoff_factor"])
def test_different_replay_rule_raises(
    factor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(replay.Fold):
        def __call__(self, rule: replay.Rule) -> tuple[int, int]:
            other = {factor: getattr(rule, factor) ** 2}
            return super().__call__(dataclasses.replace(rule, **other))

    monkeypatch.setattr(replay, "Fold", Other)
    with pytest.raises(RuntimeError, match="replay of"):
        replay.measure(steps=20_000, rounds=1, trials=1)


@pytest.mark.framework
def test_jax_step(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = needing("jax_step", "jax", "flax", "jmp", "optax")
    assert len(bench.measure_time("1x8", rounds=2, trials=1)) == len(bench.PAIRS)
    compilation = bench.measure_compilation("1x8", trials=1)
    assert {row.unit for row in compilation} == {"ms", "instructions"}
    wrong = bench.optax.sgd(2e-3, momentum=0.9)
    monkeypatch.setitem(bench.ARMS, "apply_if_finite", (bench.constant(wrong), wrong))
    with pytest.raises(RuntimeError, match="parameters, apply_if_finite"):
        bench.measure_time("1x8", rounds=2, trials=1)


def test_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = needing("watching", "wandb")
    assert len(bench.measure(("1x8",), rounds=1, trials=1)) == 4
    after = bench.Trial.after

    def touching(trial, arm):
        after(trial, arm)
        if arm == "floor":
            next(trial.models[arm].parameters()).data.add_(1)

    monkeypatch.setattr(bench.Trial, "after", touching)
    with pytest.raises(RuntimeError, match="parameters, floor"):
        bench.measure(("1x8",), rounds=1, trials=1)


def test_commands() -> None:
    rows = commands.measure(lines=50, files=1, trials=1)
    assert [row.goal for row in rows if row.goal is not None] == [8.0, 200.0, 30.0]


@pytest.mark.parametrize(
    ("figure", "goal", "met"),
    [
        (SPEEDUP, 2.0, True),
        (SPEEDUP, 2.1, False),
        (SHARE, 0.5, True),
        (TIME, 0.9, False),
    ],
)
def test_goal_uses_median_trial(figure: str, goal: float, met: bool) -> None:
    row = Row("work", "framework", "us", [1.0, 4.0, 1.0], [2.0, 1.0, 2.0], figure, goal)
    assert row.is_met() is met
    assert row.cells()[-1] == ("yes" if met else "no")


def test_rows_are_written_with_their_origin(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["bench"])
    report.run("step", lambda: [Row("work", "framework", "us", [1.0], [2.0])])
    origin, rows = data_file.read(tmp_path / "step.jsonl")
    assert origin["versions"]["torch"] == torch.__version__
    assert np.array_equal(rows[0]["theirs"], [2.0])
