"""Files that TensorBoard's and Weights & Biases' own packages wrote say what the run's own file
says.
"""

import math
import struct
import warnings

import pytest
import torch

from ampsim.runs import explain, read_log, watch
from ampsim.runs.read.history import History, NothingReadError
from ampsim.runs.read.trackers import read_rows

HOW = "pip install -c constraints.txt -e '.[report]'"


@pytest.fixture
def writer(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "events") as writer:
        yield writer


@pytest.fixture
def tracker(tmp_path, monkeypatch):
    import wandb

    for folder in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{folder}_DIR", str(tmp_path))
    settings = wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        x_disable_stats=True,
        x_disable_meta=True,
    )
    tracker = wandb.init(project="p", mode="offline", dir=tmp_path, settings=settings)
    yield tracker
    finish(tracker)


def finish(tracker):
    """End a run and wandb's process, which writes the last of the file."""
    import wandb

    tracker.finish()
    wandb.teardown()


def train(to, overflows, still=0):
    param = torch.nn.Parameter(torch.ones(3))
    optimizer, scaler = (
        torch.optim.SGD([param], 1e-3),
        torch.amp.GradScaler("cpu", growth_interval=8),
    )
    with (
        warnings.catch_warnings(),
        watch(
            {"w": param}, optimizer, scaler, to=to, sample_every=10, stall_steps=still
        ) as run,
    ):
        warnings.simplefilter("ignore")  # the alarm
        for number in range(60):
            optimizer.zero_grad()
            loss = param.square().sum() * (math.inf if number in overflows else 1.0)
            run.log(loss=loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def columns(history):
    """Return the numbers of a history by role, as (step, value)."""
    series = {
        role: history.role(role)[0] for role in ("scale", "skips", "norm", "loss")
    }
    return {
        role: (each.steps.tolist(), each.values.tolist())
        for role, each in series.items()
    }


def same(path, run):
    theirs, ours = read_log(path), read_log(run)
    found, expected = columns(theirs), columns(ours)
    for role in expected:
        assert found[role][0] == expected[role][0], role
        assert found[role][1] == pytest.approx(
            expected[role][1], rel=1e-6, nan_ok=True
        ), role
    assert (theirs.nonfinite, theirs.warnings) == (ours.nonfinite, ours.warnings)
    ids = [
        [finding.id for finding in explain(history).problems]
        for history in (theirs, ours)
    ]
    assert ids[0] == ids[1]
    return {text for _, text in ours.warnings}


RUNS = {
    "healthy": (set(), 0, False),
    "collapse": (set(range(20, 60)), 30, True),
    "spike": ({30, 31}, 0, False),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.framework("tensorboard", how=HOW)
def test_tensorboard_matches_run_file(tmp_path, writer, name):
    overflows, still, warns = RUNS[name]
    train([tmp_path / "run.jsonl", writer], overflows, still)
    assert bool(same(tmp_path / "events", tmp_path / "run.jsonl")) == warns
    [file] = (tmp_path / "events").glob("*tfevents*")
    assert bool(same(file, tmp_path / "run.jsonl")) == warns


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.framework("wandb", how=HOW)
def test_wandb_matches_run_file(tmp_path, tracker, name):
    overflows, still, warns = RUNS[name]
    train([tmp_path / "run.jsonl", tracker], overflows, still)
    finish(tracker)
    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert bool(same(file, tmp_path / "run.jsonl")) == warns
    assert bool(same(file.parent, tmp_path / "run.jsonl")) == warns


@pytest.mark.framework("wandb", how=HOW)
def test_truncated_wandb_file_is_read(tmp_path, tracker):
    steps = 200
    for number in range(steps):
        tracker.log(
            {
                "train/loss": number / 2,
                "loss_scale": 2.0**16,
                "text": "x" * (number * 331 % 70_000),
            }
        )
    finish(tracker)
    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    history = read_log(file)
    assert history.role("loss")[0].values.tolist() == [
        number / 2 for number in range(steps)
    ]
    assert set(history.role("scale")[0].values) == {2.0**16}
    whole, torn = file.read_bytes(), tmp_path / "torn.wandb"
    for cut in range(len(whole) // 2, len(whole), len(whole) // 40):
        torn.write_bytes(whole[:cut])
        loss = read_log(torn).role("loss")[0].values.tolist()
        assert loss == [number / 2 for number in range(len(loss))]


@pytest.mark.framework("wandb", how=HOW)
def test_undecodable_wandb_record_raises(tmp_path):
    record = b"\xff" * 9
    (tmp_path / "run.wandb").write_bytes(
        b":W&B\0\0\0" + struct.pack("<IHB", 0, len(record), 1) + record
    )
    with pytest.raises(
        ValueError, match=r"run\.wandb is damaged: DecodeError: .*; copy it again"
    ):
        read_log(tmp_path / "run.wandb")


@pytest.mark.framework("tensorboard", how=HOW)
def test_only_scalar_events_are_read(tmp_path, writer):
    for number in (1, 0, 2, 3):  # as two writers may leave them
        writer.add_scalar("train/loss", 2.0 - number / 4, 10 * number)
        writer.add_scalar("amp/loss_scale", 1024.0, 10 * number)
        writer.add_histogram("weights", torch.ones(3), 10 * number)
        writer.add_text("note", "loss 3", 10 * number)
    writer.close()
    history = read_log(tmp_path)  # of its parts, those of any depth
    assert history.role("loss")[0].steps.tolist() == [0, 10, 20, 30]
    assert history.role("loss")[0].values.tolist() == [2.0, 1.75, 1.5, 1.25]
    assert history.role("scale")[0].values.tolist() == [1024.0] * 4


def read_steps(rows):
    history = History("run")
    read_rows(history, enumerate(rows))
    return history


def test_logged_step_overrides_tracker_step():
    rows = [
        {"train/global_step": 50 * number, "train/loss": 2.0} for number in range(3)
    ]
    assert read_steps(rows).role("loss")[0].steps.tolist() == [0, 50, 100]
    own = {"_step": 7, "step": 3, "ampsim/step": 50, "ampsim/loss_scale": 8.0}
    history = read_steps(
        [
            {
                **own,
                "ampsim/nonfinite": "a.w has inf, b has nan",
                "ampsim/warning": "still",
            }
        ]
    )
    assert history.role("scale")[0].steps.tolist() == [50]
    assert history.nonfinite == {50: {"a.w": "has inf", "b": "has nan"}}
    assert history.warnings == [(50, "still")]
    without = [{"train/loss": 2.0, "loss_scale": 8.0}] * 3
    assert read_steps(without).role("loss")[0].steps.tolist() == [0, 1, 2]


@pytest.mark.framework("tensorboard", how=HOW)
def test_events_without_run_values_raise(tmp_path, writer):
    writer.add_scalar("accuracy", 0.5, 0)
    writer.close()
    with pytest.raises(NothingReadError, match="events"):
        read_log(tmp_path / "events")
