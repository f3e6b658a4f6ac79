"""Every arm makes the same step and sees every gradient, the ratios are what the times give; no time is asserted."""

import importlib
import os
import re
import threading
from functools import partial
from pathlib import Path

import pytest
import torch

from experiments.timing.clocks import Seconds
from experiments.timing.rounds import in_turn
from figures import results

pytest.importorskip("wandb", reason="pip install -c constraints.txt 'ampsim[trackers]'")
probe_overhead = importlib.import_module("experiments.probe_overhead")
COMMITTED = results.load("probe_overhead").records


@pytest.mark.parametrize("size", ["gpt 1x8", "resnet 1x4"])
def test_every_arm_makes_the_same_steps(size: str) -> None:
    start = list(probe_overhead.make(size, 0, "cpu", 2).model.parameters())
    with probe_overhead.offline() as tracker:
        trial = probe_overhead.Trial(size, 0, "cpu", 2, tracker)
        with trial.watching:
            in_turn(probe_overhead.ARMS, partial(trial.once, device="cpu"), 1, lambda _: None)
    models = {arm: list(task.model.parameters()) for arm, task in trial.tasks.items()}
    assert not any(torch.equal(a, b) for a, b in zip(models["bare"], start, strict=True))
    for arm, params in models.items():
        assert all(torch.equal(a, b) for a, b in zip(params, models["bare"], strict=True)), arm


def test_both_watchers_see_every_gradient() -> None:
    with probe_overhead.offline() as tracker:
        trial = probe_overhead.Trial("gpt 1x8", 0, "cpu", 2, tracker)
        with trial.watching:
            for arm in probe_overhead.ARMS:
                trial.once(arm, "cpu")
        tracker.finish()
        probe_overhead.wandb.teardown()  # writes the last of it
        (log,) = Path(tracker.dir).parent.glob("*.wandb")
        written = log.read_bytes()
    params = dict(trial.tasks["probe"].model.named_parameters())
    for name in params:  # wandb numbers the models of a process
        assert re.search(rb"gradients/(graph_\d+)?" + re.escape(name.encode()), written), name
    facts = trial.facts()
    elements = sum(map(torch.numel, params.values()))
    assert facts["probed"] == [facts["tensors"], facts["elements"]] == [len(params), elements]


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    before = dict(os.environ)
    with probe_overhead.offline():
        assert list(temporary.iterdir())
    assert [*home.rglob("*"), *temporary.iterdir()] == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wandb")]
    assert dict(os.environ) == before


def test_the_summary_is_of_differences_from_the_bare_step() -> None:
    rest = {"bare": [1.0, 2.0, 9.0], "probe": [1.5, 2.25, 9.5], "wandb": [6.0, 7.0, 19.0]}
    host = {"bare": [1.0, 1.0, 1.0], "probe": [2.0, 2.0, 2.0], "wandb": [3.0, 4.0, 5.0]}
    forward = Seconds(3.0, 0.25)
    times = {arm: [(forward, Seconds(*pair)) for pair in zip(rest[arm], host[arm], strict=True)] for arm in rest}
    row = probe_overhead.summary([times, times])
    assert (row["bare"], row["host_bare"]) == ([5e6] * 2, [1.25e6] * 2)
    assert row["above"] == {"probe": [5e5] * 2, "wandb": [5e6] * 2}
    assert row["ratios"] == {"wandb": [10.0] * 2}
    assert row["host_above"] == {"probe": [1e6] * 2, "wandb": [3e6] * 2}
    assert row["host_ratios"] == {"wandb": [3.0] * 2}


def test_sizes_are_what_they_say() -> None:
    for size, tensors in (("gpt 12x32", 148), ("gpt2 1x128", 16), ("resnet 1x16", 18)):
        model = probe_overhead.make(size, 0, "cpu", 1).model
        assert len(list(model.parameters())) == tensors
    assert sum(map(torch.numel, probe_overhead.make("gpt2 2x64", 0, "cpu", 1).model.parameters())) > 50257 * 64


def test_the_committed_run_saw_every_gradient_of_every_model() -> None:
    (record,) = COMMITTED
    assert [row["size"] for row in record["rows"]] == list(probe_overhead.Config().on_cpu)
    for row in record["rows"]:
        assert row["probed"] == [row["tensors"], row["elements"]]
        assert all(len(times) == probe_overhead.Config().trials for times in row["above"].values())
        assert min(row["ratios"]["wandb"]) > 1


def test_the_table_names_every_model_and_arm() -> None:
    table = probe_overhead.table(COMMITTED)
    assert len(table.rows) == sum(len(row["above"]) for row in COMMITTED[0]["rows"])
