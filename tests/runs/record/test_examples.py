"""The examples of ``ampsim/runs/record/examples.md``, each where its package is installed."""

import doctest
import re
import sys
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[3] / "ampsim/runs/record/examples.md"
HEAD, *SECTIONS = PAGE.read_text().split("\n## ")
EXAMPLES = {section.partition("\n")[0]: section for section in SECTIONS}
HOW = "pip install -c constraints.txt -e '.[report]' --group clients"


@pytest.fixture(autouse=True)
def without_state_of_other_tests():
    """Reset the state that accelerate keeps per process; it raises for another precision."""
    if state := sys.modules.get("accelerate.state"):
        state.AcceleratorState._reset_state(reset_partial_state=True)


def run(name):
    """Run an example; return what it has defined."""
    test = doctest.DocTestParser().get_doctest(
        HEAD + EXAMPLES[name], {}, name, str(PAGE), 0
    )
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(
        test, clear_globs=False
    )
    assert (result.attempted > 9, result.failed) == (True, 0)
    return test.globs


@pytest.mark.filterwarnings("ignore")  # of the packages, about each other
@pytest.mark.parametrize(
    "name",
    [
        "torch",
        *(
            pytest.param(name, marks=pytest.mark.framework(name.lower(), how=HOW))
            for name in ("accelerate", "Lightning", "transformers")
        ),
    ],
)
def test_example_runs_as_documented(name):
    run(name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.framework("wandb", how=HOW)
def test_wandb_receives_all_steps(monkeypatch, tmp_path):
    import wandb

    from ampsim.runs.read.trackers import wandb_rows

    for folder in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{folder}_DIR", str(tmp_path))
    folder = run("Weights & Biases")["folder"]
    wandb.teardown()  # its process writes the last of it
    [file] = folder.glob("wandb/offline-run-*/*.wandb")
    rows = list(wandb_rows(file))
    assert [
        (row["ampsim/step"], row["ampsim/loss_scale"], row["ampsim/skipped"])
        for row in rows
    ] == [
        (0, 1024.0, 0.0),
        (1, 1024.0, 1.0),
        (2, 512.0, 0.0),
    ]
    assert re.fullmatch(
        "weight has (inf|nan), bias has (inf|nan)", str(rows[1]["ampsim/nonfinite"])
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.framework("tensorboard", how=HOW)
def test_tensorboard_receives_all_steps():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run("TensorBoard")["folder"] / "events")).Reload()
    for name, values in {
        "loss_scale": [1024.0, 1024.0, 512.0],
        "skipped": [0.0, 1.0, 0.0],
        "log2_scale": [10, 10, 9],
    }.items():
        assert [
            (each.step, each.value) for each in events.Scalars(f"ampsim/{name}")
        ] == [*enumerate(values)]
    [text] = events.Tensors("ampsim/nonfinite/text_summary")
    assert (text.step, text.tensor_proto.string_val[0][:11]) == (1, b"weight has ")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.framework("transformers", how=HOW)
def test_resumed_trainer_continues_steps(tmp_path):
    import types

    from ampsim.runs import records
    from ampsim.runs.record.callbacks.transformers import RecordCallback

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for first, steps in ((0, 5), (3, 2)):
        callback = RecordCallback(tmp_path / "run.jsonl")
        state = types.SimpleNamespace(global_step=first, is_world_process_zero=True)
        callback.on_train_begin(None, state, None, model=model, optimizer=optimizer)
        for _ in range(steps):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            callback.on_log(None, state, None, logs={"loss": 2.0, "epoch": 1.0})
        callback.on_train_end(None, state, None)
    rows = list(records(tmp_path / "run.jsonl"))
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 3, 4]
    assert {row["loss"] for row in rows} == {2.0}
