"""A file is read in any encoding, whatever program wrote it; one without a run is refused."""

import codecs
import gzip
import json
import math
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim.core.files import DamagedFileError
from ampsim.runs import explain, read_log
from ampsim.runs.read import history as history_module
from ampsim.runs.read.history import History, NothingReadError, Series
from ampsim.runs.record.run_file import RunFile
from ampsim.runs.report.report import report
from tests.examples import examples
from tests.runs.test_truth import LOGS

LOG = "".join(
    f"step {at}: loss {3 - at / 9}, loss_scale {2.0 ** (16 - at)}\n" for at in range(9)
)


def read(folder: Path, data: str | bytes, name: str = "train.log") -> History:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_log(path)


def scale_of(lines: list[str]) -> list[float]:
    return read_log(lines).role("scale")[0].values.tolist()


# Each prints a scale of 2^16 that halves twice. {} is the scale, {n} the step.
PRINTS = [
    "{}",
    "{n} {}",
    "scale: {}",
    "scaler.get_scale()={}",
    "current scale {}",
    "step {n} amp scale {}",
    "loss_scaler: {}",
    "[D scale: {}] [G scale: {}]",
    "step={n} ls={}",
    "{{'scale': {}, 'growth_factor': 2.0}}",
    "tensor({}, device='cuda:0')",
    "| loss_scale | {} |",
    '{{"step": {n}, "train/amp_scale": {}}}',
    "Fp16 Grad Scale: {}",
    "step {n} S={}",
]


@pytest.mark.parametrize("form", PRINTS)
def test_natural_prints_of_scale_are_read(form: str) -> None:
    scales = [65536.0] * 5 + [32768.0] * 5 + [16384.0] * 5
    lines = [
        form.replace("{n}", str(n)).format(*[scale] * form.count("{}"))
        if "{{" not in form
        else form.format(scale, n=n)
        for n, scale in enumerate(scales)
    ]
    assert scale_of(lines) == scales


def test_powers_of_two_alone_are_no_scale() -> None:
    sizes = [1024, 2048, 1024, 4096, 256, 1024, 2048, 512]
    with pytest.raises(NothingReadError):
        read_log([f"layer {n}: hidden {size}" for n, size in enumerate(sizes)])


def test_two_scales_stay_apart() -> None:
    lines = [
        f"iter {n} d_loss 1.{n} g_loss 2.{n} d_scale {2**16} g_scale {2**8}"
        for n in range(9)
    ]
    found = {
        series.name: set(series.values) for series in read_log(lines).role("scale")
    }
    assert found == {"d_scale": {2.0**16}, "g_scale": {2.0**8}}


def test_ranks_stay_apart() -> None:
    lines = [
        f"[rank{rank}]: step {n} loss {n + rank}.0 scale 8"
        for n in range(9)
        for rank in (0, 1)
    ]
    losses = {
        series.rank: series.values.tolist() for series in read_log(lines).role("loss")
    }
    assert losses == {rank: [n + rank for n in range(9)] for rank in (0, 1)}


def test_steps_count_over_epochs() -> None:
    lines = [
        f"Epoch: [{epoch}][{batch}/10] loss {2.0}"
        for epoch in (0, 1)
        for batch in range(10)
    ]
    assert read_log(lines).role("loss")[0].steps.tolist() == list(range(20))


PLACES = {  # a line of step k, counted from 0, in epochs of 100 steps -> where step 357 is
    "Epoch {one}/4: {batch}/100 loss={loss}": "step 357",
    "epoch={zero} {batch}/100 loss={loss}": "step 357",
    "Epoch [{one}][{batch}/100] loss: {loss}": "step 357",
    "epoch {one} step {k}/400 loss: {loss}": "step 357",
    "epoch {one} step {batch} loss: {loss}": "epoch 4 (line 358)",  # epochs may be longer
    '{{"train/global_step": {k}, "epoch": {zero}, "train/loss": {loss}}}': "step 357",
    "Train Epoch: {one} [{batch}00/10000 ({batch}%)] Loss: {loss}": "epoch 4",  # samples
    "epoch {k}: 4/4 loss={loss}\nvalid: 1/1 loss={loss}": "step 1432",  # 358 epochs
    "Epoch {k}/400 - loss: {loss} - acc: 0.5": "epoch 357",
    '{{"epoch": {k}, "train_loss": {loss}}}': "epoch 357",
    "Epoch {k}/400\n1563/1563 [===] - 8s - loss: {loss}": "step 559554",  # 358 epochs
}


@pytest.mark.parametrize("form", PLACES)
def test_place_is_the_true_step(form: str) -> None:
    text = "\n".join(
        form.format(
            k=k, one=k // 100 + 1, zero=k // 100, batch=k % 100, loss=9 - k / 100
        )
        for k in range(400)
    )
    [loss] = read_log(text.split("\n")).role("loss")
    assert loss.place(357) == PLACES[form]


def test_unknown_first_epoch_gives_no_step() -> None:
    lines = [f"Epoch [4][{batch}/100] loss: 2.0" for batch in range(60)]
    [loss] = read_log(lines).role("loss")
    assert loss.place(58) == "epoch 4 (line 59)"
    last = [line.replace("[4]", "4/4 ") for line in lines]
    [loss] = read_log(last).role("loss")
    assert loss.place(58) == "step 358"


@pytest.mark.parametrize("width", [60, 64, 71])
def test_wrapped_lines_are_joined(width: int) -> None:
    whole = [
        f"[12:{n:02d}] step {n:5d} | loss {2 - n / 50:.6f} | loss_scale 65536.0 | grad_norm {1 + n / 9:.6f} | lr 0.1"
        for n in range(40)
    ]
    cut = [line[at : at + width] for line in whole for at in range(0, len(line), width)]
    for role in ("loss", "scale", "norm"):
        found, expected = (
            read_log(lines).role(role)[0].values.tolist() for lines in (cut, whole)
        )
        assert found == expected


def test_second_handler_counts_once() -> None:
    lines = [
        f"{prefix}step {n} loss {n}.5 scale 8"
        for n in range(9)
        for prefix in ("", "INFO: ")
    ]
    assert len(read_log(lines).role("loss")[0]) == 9


def test_repeated_skip_lines_with_records_between_count() -> None:
    skip = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 262144.0"
    lines = [line for n in range(3) for line in (skip, skip, f"step {n} loss 2.{n}")]
    assert len(read_log(lines).events) == 3


def test_percentages_and_dates_are_no_numbers() -> None:
    [loss] = read_log(["2026-01-01 12:00:00 50% loss 2.5 (7%)"] * 4).role("loss")
    assert loss.values.tolist() == [2.5] * 4


@pytest.mark.parametrize(
    "data", ["", "\n \n", "hello\nworld\n", "\0\0\0", "{" * 1000, "loss of data\n"]
)
def test_files_without_runs_raise(tmp_path: Path, data: str) -> None:
    with pytest.raises(NothingReadError, match=r"train\.log"):
        read(tmp_path, data)


def test_folders_without_runs_raise(tmp_path: Path) -> None:
    with pytest.raises(NothingReadError, match="tfevents"):
        read_log(tmp_path)


def test_error_shows_readable_example_line(tmp_path: Path) -> None:
    with pytest.raises(NothingReadError) as refused:
        read(tmp_path, "hello\n")
    history = read(tmp_path, str(refused.value).split("'")[1])
    found = [history.role(role)[0].values[0] for role in ("loss", "scale", "norm")]
    assert found == [2.3, 65536, 1.2]


ENCODINGS = {
    "gzip": gzip.compress(LOG.encode()),
    "gzip twice": gzip.compress(gzip.compress(LOG.encode())),
    "utf-16": LOG.encode("utf-16"),
    "utf-16 of another order": codecs.BOM_UTF16_BE + LOG.encode("utf-16-be"),
    "returns": LOG.replace("\n", "\r\n").encode(),
    "colors": "".join(f"\x1b[1m{line}\x1b[0m\n" for line in LOG.splitlines()).encode(),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_any_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    plain, found = read(tmp_path, LOG), read(tmp_path, ENCODINGS[encoding])
    for role in ("loss", "scale"):
        np.testing.assert_array_equal(
            found.role(role)[0].values, plain.role(role)[0].values
        )
    assert found.notes == []


def test_archives_with_torn_end_are_read(tmp_path: Path) -> None:
    history = read(tmp_path, gzip.compress(LOG.encode())[:-8])
    assert len(history.role("loss")[0]) == 9
    assert "Only a part" in history.notes[0]


def test_cut_last_number_is_not_read(tmp_path: Path) -> None:
    text = "".join(f"step {n} scale 5.96e-08\n" for n in range(6)) + "step 6 scale 5.96"
    assert set(read(tmp_path, text).role("scale")[0].values) == {5.96e-08}


DOCUMENTS = {
    "trainer_state.json": {
        "log_history": [{"step": 10 * n, "loss": n, "grad_norm": 1.0} for n in range(4)]
    },
    "list.json": [{"step": 10 * n, "loss": n} for n in range(4)],
    "a.ipynb": {
        "cells": [
            {"outputs": [{"text": [f"step {10 * n} loss {n}\n" for n in range(4)]}]}
        ]
    },
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_read(tmp_path: Path, name: str) -> None:
    [loss] = read(tmp_path, json.dumps(DOCUMENTS[name], indent=1), name).role("loss")
    assert (loss.steps.tolist(), loss.values.tolist()) == (
        [0, 10, 20, 30],
        [0, 1, 2, 3],
    )


def test_tables_are_read(tmp_path: Path) -> None:
    rows = "step,train_loss,loss_scale\n" + "".join(
        f"{n},{n}.5,65536\n" for n in range(4)
    )
    history = read(tmp_path, rows, "metrics.csv")
    assert history.role("loss")[0].values.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert history.role("scale")[0].steps.tolist() == [0, 1, 2, 3]


def test_rows_may_differ_from_header() -> None:
    lines = [f"1\t{16 * k}\t{k}\t{8 - k}\t2.5" for k in range(1, 5)]
    [loss] = read_log(["epoch,step,grad_step,tr_loss,tr_ppl", *lines]).role("loss")
    assert loss.values.tolist() == [7, 6, 5, 4]
    assert loss.known_steps.tolist() == [16, 32, 48, 64]


def test_named_numbers_behind_steps() -> None:
    history = read_log(["0 val 11.0", "0 train 11.2", "1 train 10.9", "2 train 10.8"])
    values = {series.role: series.values.tolist() for series in history.series}
    assert values == {"evaluation": [11.0], "loss": [11.2, 10.9, 10.8]}


def test_recorded_run_round_trips(tmp_path: Path) -> None:
    bad = {"w": "has inf"}
    with RunFile(tmp_path / "run.jsonl", {"growth_interval": 2000}) as file:
        file.append(
            {
                "step": 0,
                "loss_scale": 8.0,
                "skipped": True,
                "grad_norm": math.inf,
                "nonfinite": bad,
            }
        )
        file.append(
            {
                "step": 1,
                "loss_scale": 4.0,
                "skipped": False,
                "grad_norm": 1.0,
                "warning": "stands",
            }
        )
    history = read_log(tmp_path / "run.jsonl")
    assert history.recorded
    assert history.settings == {"growth_interval": 2000}
    assert (history.nonfinite, history.warnings) == ({0: bad}, [(1, "stands")])
    assert history.role("scale")[0].values.tolist() == [8.0, 4.0]
    assert history.role("flag")[0].values.tolist() == [1.0, 0.0]


def test_repeated_steps_keep_the_last(tmp_path: Path) -> None:
    with RunFile(tmp_path / "run.jsonl", {}) as file:
        for step, loss in [(0, 9.0), (1, 8.0), (2, 7.0), (1, 3.0), (2, 2.0)]:
            file.append({"step": step, "loss": loss})
    [loss] = read_log(tmp_path / "run.jsonl").role("loss")
    assert (loss.steps.tolist(), loss.values.tolist()) == ([0, 1, 2], [9, 3, 2])


def test_long_series_keeps_lost_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "LONGEST", 64)
    series = Series("loss", "loss")
    for n in range(1000):
        series.add(n, n, math.nan if n == 500 else 1.0)
    assert 32 <= len(series) <= 64
    assert np.isnan(series.values).any()


def test_memory_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "LONGEST", 256)

    def peak(lines: int) -> int:
        tracemalloc.start()
        read_log(
            f"step {i} loss: 2.0 scale: {2 ** (i % 7)} grad_norm: 1.0\n"
            for i in range(lines)
        )
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(3000)
    assert peak(24_000) < 1.3 * peak(6_000)


# ---- any text


NUMBERS = (
    st.floats(width=32)
    | st.floats()
    | st.sampled_from([65536.0, 2.0**32, 5e-324, 1e308])
)
WORDS = """step iteration epoch loss scale loss_scale grad_norm skipped num_updates log2_scale log_history deepspeed
: = , | { } [ ] " ' 1/9 log_dist] [00:01<00:02, [deepspeed] {"run": # overflow Skipping"""
LINES = [
    '{"run": {}, "format": 1}\n',
    '{"step": [], "grad_norm": "x"}\n',
    "\n",
    "\r",
    "\x1b[1m",
    "\0",
]
WHOLE = ["\n".join(log["log"]) for log in LOGS if len(log["log"]) < 6]
WRITTEN = st.sampled_from(WORDS.split() + LINES) | st.sampled_from(WHOLE)
TOKENS = WRITTEN | NUMBERS.map(str) | st.integers().map(str) | st.text(max_size=5)
PARTS = st.lists(TOKENS, max_size=30)
TEXTS = PARTS.map("".join) | PARTS.map(" ".join)
NAMES = st.sampled_from(
    ["train.log", "log.json", "log.jsonl", "metrics.csv", "a.ipynb"]
)


@settings(max_examples=examples(ms=5))
@given(TEXTS, NAMES)
@example('{"run": {}, "format": 1}\n{"step": [], "grad_norm": "x"}\n', "run.jsonl")
@example("step " + "9" * 400 + " loss: 1", "train.log")
@example('{"run": 1, "loss": 2}', "log.jsonl")
@example('{"cells": [{"outputs": [{"text": 7}, 1]}]}', "a.ipynb")
@example('loss,scale\n1,"2\0\n', "metrics.csv")
@example("step 1, skipped=1e308\nstep 2, skipped=inf", "train.log")
def test_arbitrary_text_is_explained_or_raises(
    tmp_path_factory: Any, text: str, name: str
) -> None:
    path: Path = tmp_path_factory.mktemp("log") / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        found = explain(path)
    except (NothingReadError, DamagedFileError):
        return
    assert str(found).startswith((found.verdict.capitalize(), "Warning: "))
    assert json.dumps(found.to_json(), allow_nan=False)
    assert re.search("<title>", report(found))


@pytest.mark.parametrize(
    "line",
    [
        "a" * 9000 + ": loss x\n",
        "OVERFLOW! overflow " * 900,
        "loss:" * 4000,
        "1" * 9000 + " [ < loss\n",
    ],
)
def test_hostile_lines_take_linear_time(line: str) -> None:
    with pytest.raises(NothingReadError):
        read_log([line] * 3)  # a pattern that goes back over it would not end today


def test_list_is_read_as_file_is(tmp_path: Path) -> None:
    bar = "\r".join(f"step {n} loss {3 - n / 50}" for n in range(60)) + "\n"
    [loss], [of_file] = (
        history.role("loss") for history in (read_log([bar]), read(tmp_path, bar))
    )
    assert loss.values.tolist() == of_file.values.tolist()
    assert loss.lines.tolist() == of_file.lines.tolist() == list(range(1, 61))


def test_sentences_alone_are_no_series() -> None:
    prose = [
        "The loss is inf from step 357 to the end, and that is a pity.",
        "So the loss scale is 1024 if the loss was 2.5 at the start.",
    ]
    with pytest.raises(NothingReadError):
        read_log(prose)
    lines = [f"The loss is {4 - n / 9} at the end of epoch {n}" for n in range(9)]
    assert len(read_log(lines).role("loss")[0]) >= 8


def test_lines_of_tracebacks_are_no_series() -> None:
    frame = '  File "/x/torch/amp/grad_scaler.py", line 346, in step'
    history = read_log(["loss 2.5", "loss 2.3", frame, frame.replace("346", "512")])
    assert [series.name for series in history.series] == ["loss"]
