"""A file is read in any encoding, as far as it is whole; one without a run is refused."""

import codecs
import functools
import gzip
import math
import signal
from pathlib import Path

import numpy as np
import pytest

from ampsim.cli.report import _interrupts
from ampsim.core.files import DamagedFileError
from ampsim.diagnose.history import History
from ampsim.diagnose.readers.sniff import NothingReadError, read_history
from ampsim.runs.record.run_file import RunFile

LOG = "".join(f"step {at}: loss {3 - at / 9}, loss_scale {2.0 ** (16 - at)}\n" for at in range(9))


def read(folder: Path, data: str | bytes, name: str = "train.log") -> History:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_history(path)


def test_recorded_run_round_trips(tmp_path: Path) -> None:
    with RunFile(tmp_path / "run.jsonl", {"growth_interval": 2000}) as file:
        bad = {"w": "has inf"}
        file.append(
            {"step": 0, "loss_scale": 8.0, "skipped": True, "grad_norm": math.inf, "nonfinite": bad}
        )
        file.append(
            {"step": 1, "loss_scale": 4.0, "skipped": False, "grad_norm": 1.0, "warning": "stands"}
        )
    history = read_history(tmp_path / "run.jsonl")
    assert history.every_step
    assert history.settings == {"growth_interval": 2000}
    assert (history.bad, history.alarms) == ({0: bad}, [(1, "stands")])
    assert history.scale.tolist() == [8.0, 4.0]
    assert history.skipped.tolist() == [1.0, 0.0]


def test_a_restarted_run_keeps_its_lines(tmp_path: Path) -> None:
    for _ in range(3):
        with RunFile(tmp_path / "run.jsonl", {}) as file:
            file.append({"step": file.next_step, "loss_scale": 8.0})
    assert read_history(tmp_path / "run.jsonl").line.tolist() == [2, 4, 6]


@pytest.mark.parametrize(
    "data",
    [
        "",
        "\n \n",
        "hello\nworld\n",
        "\0\0\0",
        "{" * 1000,
        "loss of data\n",
        "1,2.5,65536\n2,2.4,65536\n",
    ],
)
def test_files_without_runs_raise(tmp_path: Path, data: str) -> None:
    with pytest.raises(NothingReadError, match=r"train\.log"):
        read(tmp_path, data)


def test_folders_without_runs_raise(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with pytest.raises(NothingReadError, match="tfevents"):
        read_history(tmp_path)


def test_error_shows_readable_example_line(tmp_path: Path) -> None:
    with pytest.raises(NothingReadError) as refused:
        read(tmp_path, "hello\n")
    history = read(tmp_path, str(refused.value).split("'")[1])
    found = (history.step[0], history.loss[0], history.scale[0], history.norm[0])
    assert found == (10, 2.3, 65536, 1.2)


@pytest.mark.parametrize(
    "record", ['{"step": [], "grad_norm": "x"}', '{"grad_norm": 1.0}', '{"step": -1}']
)
def test_records_need_a_step(tmp_path: Path, record: str) -> None:
    with pytest.raises(DamagedFileError, match=r"line 2: .*step"):
        read(tmp_path, f'{{"run": {{}}, "format": 1}}\n{record}\n{{"step": 1}}\n')


def test_lines_around_damaged_bytes_are_read(tmp_path: Path) -> None:
    damaged = b"step 1 loss: 2.0 scale: 8\n\xff\xfe\x00 loss\nstep 2 loss: 1.0 scale: 4\nstep 3 lo"
    assert read(tmp_path, damaged).scale.tolist() == [8.0, 4.0]


ENCODINGS = {
    "gzip": gzip.compress(LOG.encode()),
    "gzip twice": gzip.compress(gzip.compress(LOG.encode())),
    "utf-16": LOG.encode("utf-16"),
    "utf-16 of another order": codecs.BOM_UTF16_BE + LOG.encode("utf-16-be"),
    "gzip of utf-16": gzip.compress(LOG.encode("utf-16")),
    "returns": LOG.replace("\n", "\r\n").encode(),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_any_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    plain, found = read(tmp_path, LOG), read(tmp_path, ENCODINGS[encoding])
    assert found.step.tolist() == list(range(9))
    for name in ("step", "loss", "scale"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))
    assert found.notes == []


@pytest.mark.parametrize("damage", ["torn", "followed by noise"])
def test_archives_with_damaged_end_are_read(tmp_path: Path, damage: str) -> None:
    packed = gzip.compress(LOG.encode())
    data = packed[:-8] if damage == "torn" else packed + packed[:10] + b"\xff"
    history = read(tmp_path, data)
    assert history.step.tolist() == list(range(9))
    assert "damaged" in history.notes[0]


def test_corrupt_or_deeply_nested_archives_raise(tmp_path: Path) -> None:
    flipped = bytearray(gzip.compress(LOG.encode()))
    flipped[15] ^= 255
    many = functools.reduce(lambda data, _: gzip.compress(data, 1), range(1200), LOG.encode())
    for data in (bytes(flipped), gzip.compress(b"\x1f\x8b" + b"no archive"), many):
        with pytest.raises(NothingReadError, match=r"train\.log"):
            read(tmp_path, data)


def test_an_interrupted_reading_is_kept(tmp_path: Path) -> None:
    path, asked = tmp_path / "train.log", []
    lines = (f"step {i}, loss: 2.5, loss_scale: 65536, grad_norm: 1.{i}\n" for i in range(120_000))
    path.write_text("".join(lines))
    history = read_history(path, lambda done: asked.append(done) or True)
    assert len(asked) == 1
    assert 0 < len(history.step) < 119_000
    assert any("Interrupted" in note for note in history.notes)


def test_a_second_interrupt_ends_the_command() -> None:
    before, asked = signal.getsignal(signal.SIGINT), []
    with _interrupts(asked):
        signal.raise_signal(signal.SIGINT)
        assert asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
