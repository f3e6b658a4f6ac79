"""A run's file: what was appended comes back, whenever the writer is killed."""

import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim.core.files import DamagedFileError
from ampsim.run_file import BINS, RunFile, pack_counts, read_run, records, unpack_counts
from tests.examples import examples
from tests.test_cli import run

RECORD = st.fixed_dictionaries(
    {"step": st.integers(0, 10**9)},
    optional={
        "scale": st.floats(allow_nan=False),
        "skipped": st.booleans(),
        "norm": st.floats(allow_nan=False),
        "bad": st.dictionaries(st.text(), st.sampled_from(["has inf", "has nan"])),
    },
)


@settings(max_examples=examples(ms=3))
@given(st.lists(RECORD, max_size=4), st.integers(0, 400))
@example([{"step": 0, "norm": math.inf}], 0)
def test_a_file_cut_anywhere_keeps_the_whole_lines_and_is_gone_on_with(tmp_path_factory, kept, cut):
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    with RunFile(path, {"seed": 1}) as file:
        for record in kept:
            file.append(record)
    data = path.read_bytes()
    torn = data[: max(len(data) - cut, 9)]
    path.write_bytes(torn)
    whole = max(torn.count(b"\n") - 1, 0)
    if b"\n" in torn:
        assert list(records(path)) == kept[:whole]
    with RunFile(path, {"seed": 2}) as file:
        assert file.next_step == (kept[whole - 1]["step"] + 1 if whole else 0)
        file.append({"step": 7})
    assert list(records(path)) == [*kept[:whole], {"step": 7}]
    assert read_run(path) == {"seed": 1 if b"\n" in torn else 2}


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_writer_that_is_killed_in_mid_line_loses_no_record_and_is_gone_on_from(tmp_path):
    program = """
import os, signal, sys
from ampsim.run_file import RunFile
file = RunFile(sys.argv[1], {})
for step in range(50):
    file.append({"step": step})
write = os.write
def killed(handle, line):
    write(handle, line[:9])
    os.kill(os.getpid(), signal.SIGKILL)
os.write = killed
file.append({"step": 50, "norm": 1.0})
"""
    path = tmp_path / "run.jsonl"
    assert subprocess.run([sys.executable, "-c", program, path], check=False).returncode == -signal.SIGKILL  # noqa: S603
    assert path.read_bytes().endswith(b'\n{"step":5')
    for _ in range(2):  # a start that records nothing leaves a head and no step
        with RunFile(path, {}) as file:
            assert file.next_step == 50
    assert [record["step"] for record in records(path)] == list(range(50))


@pytest.mark.parametrize("line", [b'{"step": -1}', b'{"step": 1.5}', b'{"step": true}', b"[3]", b"\xff", b"[" * 10**5])
def test_a_damaged_line_has_no_step_to_go_on_from(tmp_path, line):
    path = tmp_path / "run.jsonl"
    with RunFile(path, {}) as file:
        file.append({"step": 3})
    path.write_bytes(path.read_bytes() + line + b"\n")
    with RunFile(path, {}) as file:
        assert file.next_step == 4
    assert line in path.read_bytes()


@pytest.mark.parametrize(
    "text",
    ["loss 3.2\n", "loss 3.2", '{"provenance":{}}\n', "[" * 10**5, '{"run":1,"format":1}\n', '{"run":{},"format":9}\n'],
)
def test_another_file_is_refused_and_stays_as_it_is(tmp_path, text):
    path = tmp_path / "train.log"
    path.write_text(text)
    for _ in range(2):  # the first leaves no lock
        with pytest.raises(ValueError, match="expected the file of a watched run"):
            RunFile(path, {})
    with pytest.raises(ValueError, match="expected the file of a watched run"):
        list(records(path))
    assert path.read_text() == text


def test_a_second_writer_is_refused(tmp_path):
    with RunFile(tmp_path / "run.jsonl", {}):
        free = os.dup(0)
        os.close(free)
        with pytest.raises(BlockingIOError, match="give another name"):
            RunFile(tmp_path / "run.jsonl", {})
        os.close(again := os.dup(0))
        assert again == free, "a handle was left open"
    RunFile(tmp_path / "run.jsonl", {}).close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_said():
    with pytest.raises(OSError, match="No space left"):
        RunFile("/dev/full", {})


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs limits of files")
def test_a_disk_that_takes_a_part_of_a_line_leaves_nothing_of_it(tmp_path):
    import resource

    path = tmp_path / "run.jsonl"
    with RunFile(path, {}) as file:
        before = path.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 9, limits[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                file.append({"step": 0, "norm": 1.0})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == before
        file.append({"step": 0})
    assert list(records(path)) == [{"step": 0}]


def test_a_line_that_is_damaged_is_named(tmp_path):
    path = tmp_path / "run.jsonl"
    with RunFile(path, {}) as file:
        file.append({"step": 0})
    path.write_bytes(path.read_bytes() + b'{"step": \n{"step": 1}\n')
    with pytest.raises(DamagedFileError, match="line 3: not JSON"):
        list(records(path))


def test_of_a_run_that_cannot_be_written_down_no_file_is_made(tmp_path):
    with pytest.raises(TypeError):
        RunFile(tmp_path / "run.jsonl", {"scaler": object()})
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_a_number_beyond_all_floats_is_refused(tmp_path, number):
    (tmp_path / "run.jsonl").write_text(f'{{"run":{{}},"format":1}}\n{{"step":0,"norm":{number}}}\n')
    with pytest.raises(DamagedFileError, match="line 2: norm="):
        list(records(tmp_path / "run.jsonl"))


def test_nothing_of_a_refused_record_is_written(tmp_path):
    with RunFile(tmp_path / "run.jsonl", {}) as file:
        with pytest.raises(TypeError):
            file.append({"step": 0, "loss": object()})
        file.append({"step": 1})
    with pytest.raises(ValueError, match="is closed"):
        file.append({"step": 2})
    assert [record["step"] for record in records(tmp_path / "run.jsonl")] == [1]


@settings(max_examples=examples(ms=3))
@given(st.dictionaries(st.integers(0, BINS - 1), st.integers(1, 2**40)))
@example({1: 1})
@example({BINS - 3: 1})
@example({0: 1, BINS - 2: 2, BINS - 1: 3})
def test_a_histogram_comes_back(counts):
    histogram = np.zeros(BINS, np.int64)
    histogram[list(counts)] = list(counts.values())
    assert np.array_equal(unpack_counts(pack_counts(histogram)), histogram)


@pytest.mark.parametrize("change", [{"lowest": -150}, {"lowest": 128}, {"counts": None}, {"nan": "x"}])
def test_a_histogram_that_is_none_is_refused(change):
    packed = pack_counts(np.eye(1, BINS, 5, dtype=np.int64)[0])
    with pytest.raises(ValueError, match=r"expected|invalid"):
        unpack_counts(packed | change)
    with pytest.raises(ValueError, match="expected what pack_counts returns"):
        unpack_counts({})


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_keeps_nobody_out(tmp_path, monkeypatch, number):
    fcntl = pytest.importorskip("fcntl")

    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with RunFile(tmp_path / "run.jsonl", {}) as file:
        file.append({"step": 0})
    assert list(records(tmp_path / "run.jsonl")) == [{"step": 0}]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_worker_that_outlives_its_run_keeps_the_next_one_not_out(tmp_path):
    path, (reader, writer), (waits, begins) = tmp_path / "run.jsonl", os.pipe(), os.pipe()
    with RunFile(path, {}) as file:
        file.append({"step": 0})
        child = os.fork()
        if not child:  # a worker of a DataLoader, say
            os.close(writer)
            os.write(begins, b"!")
            os.read(reader, 1)
            os._exit(0)
        file.append({"step": 1})
        os.read(waits, 1)
        with pytest.raises(BlockingIOError, match="give another name"):
            RunFile(path, {})
    with RunFile(path, {}) as file:  # the child is still there
        assert file.next_step == 2
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0


HOSTILE = [
    10**400, -(10**400), 2**63, -1, 1.5, True, None, "text", "inf", [], [1], [True, None], {}, {"w": 1}, {"w": None},
    {"w": "has inf"}, {"w": []}, {"w": {}}, {"w": {"zeros": 2**70, "inf": 0, "nan": 0, "counts": [2**70], "lowest": 0}},
    {"w": {"zeros": 0, "inf": 0, "nan": 0, "counts": [[1], 2], "lowest": "x"}},
]  # fmt: skip
KEYS = ["step", "scale", "skipped", "optimizers", "norm", "loss", "bad", "by_parameter", "alarm"]


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: f"{value!r:.30}")
@pytest.mark.parametrize("key", KEYS)
def test_whatever_a_record_holds_it_is_read_or_refused_by_its_line(tmp_path, key, value):
    path = tmp_path / "run.jsonl"
    record = {"step": 3, "scale": 8.0, "skipped": True, key: value}
    path.write_text(f'{{"run":{{}},"format":1}}\n{json.dumps(record)}\n')
    said = run("report", str(path), "-o", str(tmp_path / "page.html"))
    explained = run("explain", str(path))
    assert {said[0], explained[0]} <= {0, 1, 2, 3}
    assert "Traceback" not in said[1] + explained[1]
    try:
        (read,) = records(path)
    except DamagedFileError as error:
        assert re.search(rf"run\.jsonl, line 2: ({key}=|no step).*; expected .*; restore", str(error))  # noqa: PT017
    else:
        for packed in (read.get("by_parameter") or {}).values():
            with suppress(ValueError):
                assert unpack_counts(packed).shape == (BINS,)


@pytest.mark.parametrize("code", [*range(1, 10), *range(11, 32), *range(127, 160)])
def test_what_would_steer_the_terminal_is_shown_as_a_code(tmp_path, code):
    path = tmp_path / "run.jsonl"
    with RunFile(path, {}) as file:
        file.append({"step": 0, "skipped": True, "alarm": f"a{chr(code)}]0;b", "bad": {f"w{chr(code)}[2J": "has inf"}})
        file.append({"step": 1, "skipped": True, "bad": {f"w{chr(code)}[2J": "has inf"}})
    shown = run("explain", str(path))[1]
    assert "]0;b" in shown
    assert chr(code) == "\t" or chr(code) not in shown
