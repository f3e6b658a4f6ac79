"""Each kind of log gives the history that is in it. The lines are in the form that the programs print."""

import codecs
import functools
import gzip
import json
import math
import signal

import numpy as np
import pytest

from ampsim.cli.report import _interrupts
from ampsim.core.files import DamagedFileError
from ampsim.diagnose.readers import run as own
from ampsim.diagnose.readers import sniff, tables
from ampsim.diagnose.readers.fields import entry_of, field_of
from ampsim.diagnose.readers.lines import Width
from ampsim.diagnose.readers.sniff import NothingReadError, read_history
from ampsim.run_file import RunFile, pack_counts

MEGATRON = """\
training ...
 iteration    29030/  159576 | consumed samples: 14863360 | elapsed time per iteration (ms): 10561.6 | learning rate: \
5.6E-05 | global batch size: 1024 | lm loss: 2.771000E+00 | loss scale: 65536.0 | grad norm: 12952.562 \
| number of skipped iterations:   0 | number of nan iterations:   0 |
 iteration    29040/  159576 | consumed samples: 14873600 | learning rate: 5.6E-05 | lm loss: 7.340000E+00 | \
loss scale: 8192.0 | grad norm: 262623.331 | number of skipped iterations:   0 | number of nan iterations:   0 |
time (ms) | forward-compute: 3012.1
"""
DEEPSPEED = """\
[2026-01-01 10:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.0001], mom=[(0.9, 0.999)]
[2026-01-01 10:00:01,000] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. \
Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1
[2026-01-01 10:00:01,000] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 1 Skipping step. \
Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1
[2026-01-01 10:00:02,000] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. \
Attempted loss scale: 65536, reducing to 32768
[2026-01-01 10:00:03,000] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. \
Attempted loss scale: 32768, reducing to 16384
"""
FAIRSEQ = """\
2026-01-01 10:00:00 | INFO | train_inner | epoch 001:     50 / 1000 loss=12.1, ppl=4400.1, wps=0, num_updates=50, \
lr=1e-05, gnorm=3.1, loss_scale=128, train_wall=9
2026-01-01 10:00:09 | INFO | fairseq.trainer | NOTE: gradient overflow detected, \
ignoring gradient, setting loss scale to: 64.0
2026-01-01 10:00:10 | INFO | train_inner | epoch 001:    100 / 1000 loss=11.1, num_updates=100, gnorm=2.9, loss_scale=64
"""
TRAINER = """\
{'loss': 2.5, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': 0.1}
{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.2}
"""


def read(tmp_path, text, name="train.log"):
    path = tmp_path / name
    path.write_text(text if text.endswith("\n") else text + "\n")
    return read_history(path)


def test_megatron(tmp_path):
    history = read(tmp_path, MEGATRON)
    assert history.program == "Megatron"
    assert history.step.tolist() == [29030, 29040]
    assert history.scale.tolist() == [65536.0, 8192.0]
    assert history.norm.tolist() == [12952.562, 262623.331]
    assert history.loss.tolist() == [2.771, 7.34]
    assert history.skipped.tolist() == [0, 0]


@pytest.mark.parametrize("nans", [0, 1, 2])
def test_megatron_averages_finite_losses_beside_a_count_of_the_others(tmp_path, nans):
    path = tmp_path / "log.txt"
    path.write_text(
        MEGATRON.replace("number of nan iterations:   0 |\ntime", f"number of nan iterations:   {nans} |\ntime")
    )
    assert np.isfinite(read_history(path).loss).tolist() == [True, not nans]


def test_deepspeed_counts_the_overflows_of_one_rank(tmp_path):
    history = read(tmp_path, DEEPSPEED)
    assert history.program == "DeepSpeed"
    assert history.scale.tolist()[1:] == [65536.0, 65536.0, 32768.0]
    assert history.left.tolist()[1:] == [65536.0, 32768.0, 16384.0]
    assert history.told.tolist()[1:] == [1, 1, 1]
    assert history.total[0] == 0


def test_fairseq(tmp_path):
    history = read(tmp_path, FAIRSEQ)
    assert history.program == "fairseq"
    assert history.step.tolist() == [50, 75, 100]  # a sentence lies somewhere between its neighbours
    assert history.numbered.tolist() == [True, False, True]
    assert (history.scale[[0, 2]].tolist(), history.left[1]) == ([128.0, 64.0], 64.0)
    assert history.norm[[0, 2]].tolist() == [3.1, 2.9]


def test_the_console_of_the_trainer(tmp_path):
    history = read(tmp_path, TRAINER)
    assert history.program == "HF Trainer"
    assert history.norm[0] == 1.5
    assert history.norm[1] == math.inf
    assert history.unit == "line"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trainer_state.json", json.dumps({"log_history": [{"step": 10, "loss": 2.5, "grad_norm": 1.5}]}, indent=2)),
        ("log.jsonl", '{"global_step": 10, "train/loss": 2.5, "train/grad_norm": 1.5}\n'),
        ("metrics.csv", "epoch,grad_norm,step,train_loss\n0,1.5,10,2.5\n1,,,\n"),
        ("out.txt", "[step 10] loss: 2.5 grad_norm=1.5\n"),
        ("out.txt", "step 10 | loss: 2.5 | grad norm: 1.5\n"),
        ("out.txt", "INFO step: 10, loss: 2.5, total_norm: 1.5e0, lr: 3e-4\n"),
    ],
)
def test_tables_and_lines(tmp_path, name, text):
    history = read(tmp_path, text, name)
    assert (history.step.tolist(), history.loss.tolist(), history.norm.tolist()) == ([10], [2.5], [1.5])


def test_our_own(tmp_path):
    with RunFile(tmp_path / "run.jsonl", {"growth_interval": 2000}) as file:
        file.append({"step": 0, "scale": 8.0, "skipped": True, "norm": math.inf, "bad": {"w": "has inf"}})
        file.append({"step": 1, "scale": 4.0, "skipped": False, "norm": 1.0, "alarm": "stands still"})
    history = read_history(tmp_path / "run.jsonl")
    assert history.every_step
    assert history.settings == {"growth_interval": 2000}
    assert history.bad == {0: {"w": "has inf"}}
    assert history.alarms == [(1, "stands still")]
    assert np.array_equal(history.skipped, [1, 0])


def test_a_run_that_was_started_again_has_its_records_on_the_lines_where_they_are(tmp_path):
    for _ in range(3):
        with RunFile(tmp_path / "run.jsonl", {}) as file:
            file.append({"step": file.next_step, "scale": 8.0})
    assert read_history(tmp_path / "run.jsonl").line.tolist() == [2, 4, 6]


def test_of_a_long_run_some_samples_and_the_first_events_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(own, "SAMPLES", 4)
    monkeypatch.setattr(own, "EVENTS", 2)
    counts = pack_counts(np.ones(280, np.int64))
    with RunFile(tmp_path / "run.jsonl", {}) as file:
        for step in range(20):
            file.append({"step": step, "bad": {"w": "has inf"}, "alarm": "!", "by_parameter": {"w": counts}})
    history = read_history(tmp_path / "run.jsonl")
    assert [sample.step for sample in history.samples] == [0, 8, 16]
    assert list(history.bad) == [0, 1]
    assert [step for step, _ in history.alarms] == [0, 1]


def test_a_long_line_is_cut_between_numbers_and_an_endless_object_is_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(sniff, "LINE", 50)
    text = " ".join(f"step {step} loss: 2.0 scale: 65536," for step in range(100))
    scales = read(tmp_path, text).scale
    assert set(scales[~np.isnan(scales)]) == {65536.0}
    assert "".join(sniff._lines(tmp_path / "train.log", lambda _: None, [])) == f"{text}\n"
    monkeypatch.setattr(tables, "LONGEST_OBJECT", 100)
    text = '{\n"step": 9,\n"loss": 9,\n' + '"x": 0,\n' * 50 + '"y": 0}\n{\n"step": 10,\n"loss": 2}\n'
    assert read(tmp_path, text, "log.json").step.tolist() == [10]


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("", ": the file is empty;"),
        ("\n \n", ": the file is empty;"),
        ("hello\nworld\n", ";"),
        ("\0\0\0", ": the file is no text;"),
        ("{" * 1000, ";"),
        ("loss of data\n", ";"),
        ("1,2.5,65536\n2,2.4,65536\n", ": the first line of a table names its columns, such as step,loss,scale, and"),
    ],
)
def test_a_file_without_a_run_in_it_is_refused(tmp_path, text, instead):
    with pytest.raises(NothingReadError, match="no loss scale, gradient norm or loss of a training was read" + instead):
        read(tmp_path, text)


def test_a_folder_without_a_run_in_it_is_refused(tmp_path):
    pytest.importorskip("tensorboard")
    with pytest.raises(NothingReadError, match=r"the folder has no \*tfevents\* file and no \*\.wandb"):
        read_history(tmp_path)


def test_a_truncated_line_and_bytes_that_are_no_text_lose_nothing_else(tmp_path):
    path = tmp_path / "train.log"
    path.write_bytes(b"step 1 loss: 2.0 scale: 8\n\xff\xfe\x00 garbage loss\nstep 2 loss: 1.0 scale: 4\nstep 3 lo")
    assert read_history(path).scale.tolist() == [8.0, 4.0]


def test_the_lines_that_a_refusal_asks_for_are_read(tmp_path):
    with pytest.raises(NothingReadError, match="expected lines such as") as refused:
        read(tmp_path, "hello\n")
    line = str(refused.value).split("'")[1]
    history = read(tmp_path, line)
    assert (history.step[0], history.loss[0], history.scale[0], history.norm[0]) == (10, 2.3, 65536, 1.2)


@pytest.mark.parametrize(
    "text",
    [
        "step 10 loss: 2.0 scale: 8\r\nstep 20 loss: 1.0 scale: 4\r\n",
        "\x1b[32mstep 10\x1b[0m loss: \x1b[1m2\x1b[0m scale: 8\n\x1b[32mstep 20\x1b[0m loss: 1 scale: 4\n",
        "2026-01-01T10:00:00,123 INFO step=10 loss=2 scale=8\n2026-01-01T10:00:01,123 INFO step=20 loss=1 scale=4",
        "[2026-01-01 10:00:00] [step 10] loss: 2, scale: 8, eta: 1:02:03\n[step 20] loss: 1, scale: 4, eta: 0:59:00",
        " 1%|# | 10/900 [00:01<01:29, 9.9it/s, loss=2, scale=8]\r 2%|# | 20/900 [00:02<01:28, 9it/s, loss=1, scale=4]",
        "epoch 1 step 10 loss: 2 scale: 8 eval_loss: 9 params norm: 7\nepoch 1 step 20 loss: 1 scale: 4\nvalid_loss: 9",
        "step 10 loss: 2.0 | step 10 scale: 8\nstep 10 scale: 8\nstep 20 loss: 1.0\nstep 20 scale: 4\n",
        '[\n {"step": 10, "loss": 2.0, "scale": 8},\n {"step": 20, "loss": 1.0, "scale": 4},\n {"step": 3',
    ],
)
def test_forms_that_lines_come_in(tmp_path, text):
    history = read(tmp_path, text, "log.json" if text[0] == "[" and text[1] == "\n" else "train.log")
    assert history.step.tolist() == [10, 20]
    assert history.scale.tolist() == [8.0, 4.0]
    assert history.loss.tolist() == [2.0, 1.0]


def test_steps_that_begin_anew_with_each_epoch_go_on(tmp_path):
    lines = [f"epoch {epoch} step {step} loss: 2.0\n" for epoch in range(3) for step in range(0, 30, 10)]
    history = read(tmp_path, "".join(lines))
    assert len(history.step) == 9
    assert history.notes == []


@pytest.mark.parametrize("record", ['{"step": [], "norm": "x"}', '{"norm": 1.0}', '{"step": -1}', '{"step": null}'])
def test_a_record_without_its_step_is_damaged(tmp_path, record):
    with pytest.raises(DamagedFileError, match=r"line 2: .*step"):
        read(tmp_path, f'{{"run": {{}}, "format": 1}}\n{record}\n{{"step": 1}}\n')


def test_a_number_that_is_no_step_is_passed_over(tmp_path):
    assert read(tmp_path, "step " + "9" * 400 + " loss: 1\n").step.tolist() == [1]
    for epoch in ("NaN", "-Infinity", "0.5"):
        history = read(tmp_path, f'{{"epoch": {epoch}, "loss": 1}}\n', "log.jsonl")
        assert (history.step.tolist(), history.unit) == ([1], "line")


APEX = """\
Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 131072.0
INFO Train: [0/300][4050/5004]   eta 0:17:06 lr 0.000500 time 1.1737 (1.0765)    loss 3.2572 (3.3279)    grad_norm 1.03
"""
"""microsoft/Swin-Transformer#47"""
LIGHTNING = "".join(
    f"Epoch {epoch}:  22%|██▏       | {done}/18 [00:17<01:02,  4.47s/it, loss={10 - epoch - done / 18:.3f}, v_num=1]\r"
    for epoch in (0, 1) for done in (4, 4, 5, 18)
) + "Validation DataLoader 0: 50%|█     | 1/2 [00:00<00:00, 9it/s, val_loss=99]\n"  # fmt: skip
"""Lightning-AI/pytorch-lightning#4225; a second bar has a line of its own"""
SAT = """\
[2023-09-11 15:10:44,341] [INFO] [logging.py:96:log_dist] [Rank 0] step=100, skipped=2, lr=[5e-06], mom=[[0.9, 0.95]]
[2023-09-11 15:10:44,342] [INFO] [timer.py:260:stop] epoch=0/micro_step=100/global_step=100, RunningAvgSamplesPerSec=3.7
[2023-09-11 15:10:44,342] [INFO] [RANK 0]  iteration      100/     300 | elapsed time per iteration (ms): 1080.9 | \
learning rate 5.000E-06 | total loss 5.623437E+00 | loss 5.623437E+00 | loss scale 32768.0 |speed 222.03
"""
"""zai-org/VisualGLM-6B#267; Megatron-LM of 2019 and its forks write "lm loss 5.6 |" too"""
FAIRSEQ_EPOCHS = """\
2020-02-07 | INFO | train_inner | epoch 093:    500 / 510 loss=3.6, num_updates=23600, gnorm=0.2, loss_scale=2
2020-02-07 | INFO | train | epoch 093 | loss 3.509 | nll_loss 1.793 | num_updates 23636 | gnorm 0.223 | loss_scale 1.000
2020-02-07 | INFO | valid | epoch 093 | valid on 'valid' subset | loss 9.1 | nll_loss 2.40381 | num_updates 23636
2020-02-07 | INFO | train | {"epoch": 94, "train_loss": "3.5", "train_num_updates": "23890", "train_loss_scale": "2"}
"""
"""facebookresearch/fairseq#506, #1895"""
STATE = {
    "epoch": 3.0, "global_step": 30, "max_steps": 30,
    "log_history": [
        {"epoch": 1.0, "grad_norm": 1.5, "learning_rate": 5e-05, "loss": 2.5, "step": 10},
        {"epoch": 2.0, "grad_norm": 1.2, "learning_rate": 5e-05, "loss": 0.5, "step": 20},
        {"epoch": 2.0, "eval_loss": 7.0, "eval_runtime": 1.2, "step": 20},
        {"epoch": 3.0, "grad_norm": None, "learning_rate": 5e-05, "loss": 0.4, "step": 30},
        {"epoch": 3.0, "step": 30, "total_flos": 1.0, "train_loss": 1.1, "train_runtime": 9.0},
    ],
    "stateful_callbacks": {"TrainerControl": {"args": {"should_log": False}}},
}  # fmt: skip
"""Its last entry has the mean of all losses."""
LIGHTNING_CSV = """\
epoch,grad_2.0_norm/w.weight,grad_2.0_norm_total,step,train_loss_epoch,train_loss_step,val_loss
0,0.1,1.5,9,,2.5,
0,,,9,2.7,,9.0
1,0.1,1.25,19,,2.0,
"""


def columns(run):
    return [column.tolist() for column in (run.step, run.loss, run.scale, run.norm)]


nan = pytest.approx(math.nan, nan_ok=True)
EPOCHS = (
    "2026-01-01 epoch 001: loss=3, num_updates=100, loss_scale=8\n"
    + "2026-01-01 NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 8.0\n"
    + "2026-01-01 NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 4.0\n"
    + "2026-01-01 epoch 002: loss=2, num_updates=103, loss_scale=4\n"
)
"""Updates go on where an epoch ends, and skipped steps are none of them."""


MINDSPORE = """\
epoch: 0.0, current epoch percent: 0.001, step: 100, outpus are (Tensor(shape=[1], dtype=Float32, [ 1.02e+01]), \
Tensor(shape=[], dtype=Bool, False), Tensor(shape=[], dtype=Float32, 65536))
epoch: 0.0, current epoch percent: 0.002, step: 200, outputs are (Tensor(shape=[], dtype=Float32, value= nan), \
Tensor(shape=[], dtype=Bool, value= True), Tensor(shape=[], dtype=Float32, value= 1))
epoch: 1 step: 300, loss is nan, overflow is False, loss scale is 2.0
"""
NOTEBOOK = "Running...\nStep\tTraining Loss\tValidation Loss\n10\t2.500000\tnan\n20\t0.000000\tnan\n30\t0.0\tNo log\n"


PROGRAMS = [
    ("apex.log", APEX, [[4049.5, 4050], [nan, 3.2572], [nan, nan], [nan, 1.03]]),
    ("lightning.log", LIGHTNING, [[4, 5, 18, 19, 20, 33], [9.778, 9.722, 9, 8.778, 8.722, 8], [nan] * 6, [nan] * 6]),
    ("sat.log", SAT, [[100], [5.623437], [32768.0], [nan]]),
    ("fairseq.log", FAIRSEQ_EPOCHS, [[23600, 23636, 23890], [3.6, 3.509, 3.5], [2.0, 1.0, 2.0], [0.2, 0.223, nan]]),
    ("trainer_state.json", json.dumps(STATE, indent=2), [[10, 20, 30], [2.5, 0.5, 0.4], [nan] * 3, [1.5, 1.2, nan]]),
    ("console.log", "\n".join(map(str, STATE["log_history"])), [[10, 20, 30], [2.5, 0.5, 0.4], [nan] * 3,
     [1.5, 1.2, nan]]),
    ("epochs.log", EPOCHS, [[100, 101, 102, 103], [3, nan, nan, 2], [8.0, nan, nan, 4.0], [nan] * 4]),
    ("ranks.log", "step 3 ctc_loss: 9 loss: 2\nstep 4 log2_scale: 16\n", [[3, 4], [2, nan], [nan, 65536.0], [nan] * 2]),
    ("torn.json", '[\n{"step": 1, "loss": 2}, {\n"step": 2, "loss": 1}\n]', [[1, 2], [2, 1], [nan] * 2, [nan] * 2]),
    ("comma.log", "starting, will log loss\nstep: 1, loss: 2, scale: 4096\n", [[1], [2.0], [4096.0], [nan]]),
    ("metrics.csv", LIGHTNING_CSV, [[9, 19], [2.5, 2.0], [nan] * 2, [1.5, 1.25]]),
    ("hand.txt", "step 3: loss 2 scale 8\nstep 4: loss nan scale 4\nlr scale 9\n", [[3, 4], [2, math.inf], [8, 4],
     [nan] * 2]),
    ("nano.txt", "iter 3: loss 2.5, time 8.2ms\nscale: 8.0\n", [[3], [2.5], [nan], [nan]]),
    ("german.csv", "step;loss;scale\n3;2,5;8,0\n4;2,25;4,0\n", [[3, 4], [2.5, 2.25], [8, 4], [nan] * 2]),
    ("mindspore.log", MINDSPORE, [[100, 200, 300], [10.2, math.inf, math.inf], [65536, 1, 2], [nan] * 3]),
    ("notebook.txt", NOTEBOOK, [[10, 20, 30], [2.5, 0, 0], [nan] * 3, [nan] * 3]),
    ("fastai.txt", "epoch  train_loss  valid_loss  scale\n0  nan  nan  8.0\n1  2.5  2.6  4.0\n",
     [[2, 3], [math.inf, 2.5], [8, 4], [nan] * 2]),
    ("ocr.log", "epoch: [9/20], global_step: 30, lr: 0.1, CTCLoss: nanxxx, loss: nanxxx, time: 1 s\n",
     [[30], [math.inf], [nan], [nan]]),
    ("tensor.log", "step 3 IDLoss=tensor(nan, device='cuda:0', grad_fn=<MeanBackward0>), scale: np.float64(4096.0)\n",
     [[3], [math.inf], [4096], [nan]]),
    ("trainer_log.jsonl", '{"current_steps": 10, "total_steps": 90, "loss": 2.5, "lr": 0.1, "percentage": 11.1}\n',
     [[10], [2.5], [nan], [nan]]),
    ("card.md", "| Training Loss | Step | Wer |\n|:---:|:---:|:---:|\n| 2 | 100 | 9 |\n", [[100], [2.0], [nan], [nan]]),
    ("gan.log", "Step 10, Loss_D：nan Loss_G：2.5 D(x): 0.9\n", [[10], [math.inf], [nan], [nan]]),
    ("tabs.tsv", "step\tloss\tscale\n3\t2.5\t65,536\n", [[3], [2.5], [65536], [nan]]),
]  # fmt: skip


RANKS = "".join(f"0: {line}\n1: {line}\n" for line in MEGATRON.replace("ns:   0", "ns:   2").split("\n"))
"""What torchrun leaves of two ranks."""


def test_the_skips_that_each_rank_tells_count_once(tmp_path):
    assert read(tmp_path, RANKS).skipped.tolist() == [2, 2]


ONE_PROCESS = {  # sentences of what no rank prints again, and of what each does
    "The grad norm is nan. Skipping updating the model.\n": 2,
    "Found inf or nan, current scale is: 1024.0, decrease to: 1024.0*0.5\n": 2,
    "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 1024.0\n": 1,
}


@pytest.mark.parametrize("sentence", ONE_PROCESS)
def test_a_sentence_that_comes_again_tells_of_another_skip_where_no_ranks_repeat_it(tmp_path, sentence):
    lines = "".join(f"10:00:0{at} {sentence}" for at in range(2))
    assert np.nansum(read(tmp_path, f"step 1 loss: 2.0\n{lines}").told) == ONE_PROCESS[sentence]


def test_a_compressed_log_and_one_of_powershell_are_read_as_they_are(tmp_path):
    packed, expected = gzip.compress(MEGATRON.encode()), columns(read(tmp_path, MEGATRON))
    wide = MEGATRON.encode("utf-16"), codecs.BOM_UTF16_BE + MEGATRON.encode("utf-16-be")
    for data in (packed, gzip.compress(packed), gzip.compress(wide[0]), *wide):
        (tmp_path / "log").write_bytes(data)
        assert columns(read_history(tmp_path / "log")) == expected
    (tmp_path / "log").write_bytes(packed[:-8])
    assert read_history(tmp_path / "log").notes == [
        "The compressed file is torn, and was read up to there (Compressed file ended before the end-of-stream marker "
        "was reached)."
    ]
    (tmp_path / "log").write_bytes(packed + packed[:10] + b"\xff")  # and a block of no kind
    damaged = read_history(tmp_path / "log")
    assert columns(damaged) == expected
    assert damaged.notes[0].startswith("The compressed file is torn, and was read up to there (Error -3 while")


def test_an_archive_that_is_damaged_at_once_or_packed_without_end_is_refused_in_words(tmp_path):
    flipped = bytearray(gzip.compress(MEGATRON.encode()))
    flipped[15] ^= 255
    within = gzip.compress(b"\x1f\x8b" + b"no archive")
    many = functools.reduce(lambda data, _: gzip.compress(data, 1), range(1200), MEGATRON.encode())
    for data, what in ((flipped, "file is torn"), (within, "file is torn"), (many, "file is no text")):
        (tmp_path / "log").write_bytes(data)
        with pytest.raises(NothingReadError, match=what):
            read_history(tmp_path / "log")


def test_steps_in_no_order_and_a_run_started_often_are_told_apart_by_their_segments(tmp_path):
    lines = [f"step: {step}, loss: 2.0\n" for step in range(20)]
    assert read(tmp_path, "".join(reversed(lines))).segment[-1] == 19
    often = [line for at in range(19) for line in lines[at : at + 2]]
    assert read(tmp_path, "".join(often)).last.sum() == 20


@pytest.mark.parametrize(("name", "text", "expected"), PROGRAMS)
def test_what_programs_write(tmp_path, name, text, expected):
    assert columns(read(tmp_path, text, name)) == expected


def test_a_logarithm_that_is_no_scales_is_no_error():
    assert entry_of({"log2_scale": 10.0, "loss": 1.0}.items()) == {"scale": 1024.0, "loss": 1.0}
    for beyond in (5000.0, -5000.0):
        assert math.isnan(entry_of({"log2_scale": beyond}.items())["scale"])


def test_of_two_names_of_one_field_the_better_known_counts_and_a_setting_for_none():
    assert entry_of([("foo loss", 9.0), ("train_loss", 2.0), ("total_loss", 3.0)]) == {"loss": 2.0}
    assert entry_of([("loss_scaling", "True"), ("scale", "True"), ("loss", 2.0)]) == {"loss": 2.0}
    assert entry_of([("grad_norm", 2.0), ("grad_norm", 1.0)]) == {}


@pytest.mark.parametrize(("times", "lines", "cut"), [(3, 14, True), (2, 9, False), (3, 15, False)])
def test_lines_are_cut_where_many_have_the_greatest_length(times, lines, cut):
    width = Width()
    for text in ["x" * 99, *(["y" * 100] * times), "z" * 90]:
        if len(text) >= width.longest:
            width.see(text, "other")
    width.lines = lines
    assert (width.longest, width.times, width.cut) == (100, times, cut)


def test_a_row_that_lacks_a_cell_is_none_of_the_table(tmp_path):
    np.testing.assert_equal(columns(read(tmp_path, f"{NOTEBOOK}40\t0.5\n")), columns(read(tmp_path, NOTEBOOK)))


def test_somebody_elses_lines_may_begin_with_a_run(tmp_path):
    history = read(tmp_path, '{"run":"a","step":3,"loss":2.5}\n', "log.jsonl")
    assert (history.program, history.step.tolist()) == ("JSON Lines", [3])


def test_what_was_left_out_is_told_beside_where_the_file_is_torn(tmp_path):
    text = '{"step": 1, "loss": 2}\n{"step": 2\n' + "".join(f'{{"step": {at}, "loss": 2}}\n' for at in range(3, 99))
    (tmp_path / "log.jsonl").write_bytes(gzip.compress(text.encode())[:-9])
    first, second = read_history(tmp_path / "log.jsonl").notes
    assert first == "Left out, as no row of a table: 1 line."
    assert second.startswith("The compressed file is torn")


def test_lines_of_a_table_are_counted_with_the_empty_ones(tmp_path):
    assert read(tmp_path, '{"loss": 2}\n\n \n{"loss": 1}\n', "log.jsonl").line.tolist() == [1, 4]


def test_a_reading_that_is_stopped_keeps_what_was_read(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("".join(f"step {i}, loss: 2.5, loss_scale: 65536, grad_norm: 1.{i}\n" for i in range(120_000)))
    asked = []
    history = read_history(path, lambda done: asked.append(done) or True)
    assert len(asked) == 1
    assert 50_000 < len(history.step) < 119_000
    assert any("Interrupted" in note for note in history.notes)


def test_the_first_interrupt_ends_the_reading_and_the_second_the_command():
    before, asked = signal.getsignal(signal.SIGINT), []
    with _interrupts(asked):
        signal.raise_signal(signal.SIGINT)
        assert asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_trackers_column_of_the_training_is_known_by_its_name() -> None:
    assert [field_of(f"{name}/train")[0] for name in ("loss", "loss_scale", "grad_norm")] == ["loss", "scale", "norm"]
