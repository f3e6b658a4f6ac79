"""What is a record of a run, and what is none: configurations, notebooks, other data sets, losses under any name."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from ampsim.diagnose.explain import explain, in_words
from ampsim.diagnose.readers.sniff import read_history
from ampsim.diagnose.readers.text import read_text
from ampsim.diagnose.report import skip_rows
from tests.diagnose.said import APEX


def test_of_a_notebook_what_its_cells_printed_is_read_and_not_their_source(tmp_path: Path) -> None:
    table = ["<div>\n", " [30/30]\n", "<table><tr>\n", " <th>Step</th>\n", " <th>Training Loss</th>\n", "</tr>\n"]
    table += [f"<tr>\n <td>{at}</td>\n <td>{4 - at / 10}</td>\n</tr>\n" for at in range(1, 9)]
    outputs = [{"data": {"text/html": table}}, {"text": "step: 9, loss: 3.0\n"}, {"data": {"text/plain": "0"}}]
    cells = [{"source": ["total_loss = 0.0\n"]}, {"source": [], "outputs": outputs}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}, indent=1))
    assert read_history(tmp_path / "a.ipynb").loss.tolist() == pytest.approx([3.9 - at / 10 for at in range(8)] + [3.0])


def test_a_loss_of_0_in_a_trainers_own_file_is_one_that_was_not_finite(tmp_path: Path) -> None:
    row = '{{"current_steps": {}, "loss": {}, "lr": 1e-05, "percentage": {}}}\n'
    losses = [2.5, 2.4, 0.0, 0.0, 0.0]
    (tmp_path / "log.jsonl").write_text("".join(row.format(at, loss, at) for at, loss in enumerate(losses)))
    assert "LOSS 0" in in_words(explain(read_history(tmp_path / "log.jsonl")))


def test_a_norm_of_an_epoch_is_a_mean_also_where_it_is_often_not_finite(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    norms = ["1.5", "Infinity"]
    row = '{{"epoch": {}, "train_loss": {}, "train_grad_norm": {}}}\n'
    log.write_text("".join(row.format(at, 5 - at / 50, norms[at % 2]) for at in range(60)))
    explanation = explain(read_history(log))
    assert explanation.verdict == "cannot tell"
    assert "it is a mean over several steps" in in_words(explanation)


def test_a_sentence_without_a_number_lies_in_no_two_steps() -> None:
    lines = [f"{APEX} 32768.0", "step: 10 loss: 2.0 grad_norm: 1.0", f"{APEX} 16384.0"]
    assert [row[:2] for row in skip_rows(read_text("-", [f"{line}\n" for line in lines]))] == []


CONFIGURATIONS = [
    '{\n "total_steps": 1000,\n "loss_scale": 0,\n "lr": 0.1\n}',
    "0: 8252.pt', keep=None, learning_rate=0.0015, log_freq=0.0, loss_scale=0.0, x=False, y=True, z=1",
    "python train.py --fp16 --loss_scale 0 --max-steps 500 --lr 0.001",
    "deepspeed train.py --loss_scale=0 --save_steps=500 --num_epoch=3 --learning_rate=1e-5",
    '{"fp16": {"enabled": true, "loss_scale": 0}, "optimizer": {"params": {"lr": 1e-05}}, "steps_per_print": 10}',
    "args: {'lr': 0.001, 'loss_scale': 0, 'epochs': 10, 'fp16': True, 'save_steps': 500}",
    "Resuming from step 5000 with {'scale': 0.0, 'growth_factor': 2.0}",
    "    loss_scale: 0.0, learning_rate: 1e-4, epochs: 3, warmup_steps: 100, eval_steps: 50",
]


@pytest.mark.parametrize("line", CONFIGURATIONS)
def test_a_scale_in_a_configuration_is_none_of_the_run(line: str) -> None:
    """It is 0 there where the scale is dynamic; a terminal or a launcher may have cut the line."""
    run = [f"step {at}: loss: {3 - at / 99:.3f}, grad_norm: 1.{at}\n" for at in range(30)]
    history = read_text("-", [*(f"{part}\n" for part in line.split("\n")), *run])
    assert np.isnan(history.scale).all()
    assert explain(history).verdict == "healthy"


def test_a_scale_of_0_beside_nothing_is_no_finding() -> None:
    assert explain(read_text("-", ["step 3: scale: 0\n"])).verdict == "cannot tell"
    fell = ["step 3: loss: 2.0, scale: 1\n", "step 4: loss: 2.0, scale: 0\n"]
    assert explain(read_text("-", fell)).verdict == "wrong"
    off = "INFO Train: [0/300][{}/34]\tloss 0.9 (0.9)\tgrad_norm 0.0 (0.0)\tloss_scale 0.0000 (0.0000)\n"
    assert explain(read_text("-", [off.format(at) for at in range(9)])).verdict == "cannot tell"


@pytest.mark.parametrize("name", ["scale", "loss_scale"])
def test_a_scale_of_0_that_comes_back_is_none(name: str) -> None:
    """It was printed with few digits; and what is called a mere scale and lies on no power of two is no loss scale."""
    lines = [f"iter {at}: loss: {3 - at / 99:.3f} {name}: {at * 7 % 10 / 10}\n" for at in range(60)]
    explanation = explain(read_text("-", lines))
    assert not [each for each in explanation.statements if each.kind == "scale 0"]
    assert (name == "scale") == (not [each for each in explanation.statements if each.kind in ("scale", "skips")])


def test_a_prediction_without_a_step_does_not_make_steps_epochs(tmp_path: Path) -> None:
    rows = [{"loss": 2.0, "grad_norm": 1.0, "epoch": 0.9, "step": 500}, {"predict_loss": 1.5, "epoch": 1.0}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}, indent=2))
    assert read_history(tmp_path / "trainer_state.json").unit == "step"


NOT_FINITE = """
loss -> nan
Loss => nan
INFO: loss_total nan
losses: {'loss_ce': nan, 'loss_bbox': 0.2}
the loss of step 3: nan
mse_loss nan
Loss at step 30: nan
Training loss at epoch 25 - nan
lossD nan lossG nan
gen_loss nan disc_loss nan
(epoch: 1, iters: 100, time: 0.1, data: 0.2) G_GAN: nan G_L1: nan D_real: nan D_fake: nan
NaN loss at step 100
NaN loss encountered
Warning: NaN or Inf found in loss
WARNING: loss is NaN, skipping batch
loss became nan at step 3
1: nan, nan avg loss, 0.001000 rate, 3.2 seconds, 64 images
OrderedDict([('epoch', 3), ('train_loss', nan), ('eval_top1', 0.1)])
"""
NO_TRAINING = """
best loss inf
last_loss: inf
delta_loss: nan
lowest_loss: inf
previous loss: inf
Evaluation: loss = nan
Test set: Average loss: nan
2026-01-01 10:00:00 Val: loss nan
loss weights: inf
loss_threshold: inf
stop if loss is nan: True
    LOSS_GAMMA: 2.0
prediction_loss_only=True,
loss_nan_count: 0
loss delta: nan
Is it normal that the loss is nan in the first epoch?
Why is loss nan at step 3?
I use a loss scale; the log says loss is nan and then goes on.
no gradient overflow: scale from 1024 to 2048
https://stackoverflow.com/questions/1/loss-is-nan
"""


@pytest.mark.parametrize("line", NOT_FINITE.strip().split("\n"))
def test_a_loss_that_is_not_finite_is_read_under_any_name(line: str) -> None:
    assert [each.kind for each in explain(read_text("-", [f"{line}\n"])).wrong] == ["forward overflow"]


@pytest.mark.parametrize("line", NO_TRAINING.strip().split("\n"))
def test_what_is_not_finite_beside_the_training_is_no_finding(line: str) -> None:
    run = [f"step {at}: loss: {3 - at / 99:.3f}, grad_norm: 1.{at}\n" for at in range(30)]
    for history in (read_text("-", [f"{line}\n"]), read_text("-", [*run, f"{line}\n"])):
        assert not len(history.step) or not explain(history).wrong


def test_a_loss_under_a_name_that_is_not_known_is_one_loss() -> None:
    """Of several names the first; where a known name comes, no other."""
    parts = [f"step {at}: gen loss total: {2 + at / 9}, loss_kl: {9 - at / 9}\n" for at in range(9)]
    history = read_text("-", parts)
    assert history.loss.tolist() == pytest.approx([2 + at / 9 for at in range(9)])
    assert history.settings["loss"] == "gen_loss_total"
    known = read_text("-", ["step 1: loss: 2.0\n", "step 2: loss_kl: nan\n", "step 3: loss: 1.0, loss_kl: nan\n"])
    assert known.loss.tolist() == [2.0, math.inf, 1.0]


def test_a_trainers_state_of_one_line_is_read(tmp_path: Path) -> None:
    rows = [{"loss": 2.0 - at / 10, "grad_norm": 1.0 + at, "epoch": at / 10, "step": at} for at in range(9)]
    for name in ("trainer_state.json", "state.txt"):
        (tmp_path / name).write_text(json.dumps({"best_metric": None, "log_history": rows, "global_step": 9}))
        assert read_history(tmp_path / name).loss.tolist() == [row["loss"] for row in rows]
