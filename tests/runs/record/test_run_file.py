"""A run's file: what was appended comes back, whenever the writer is killed."""

import json
import math
import os
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ampsim.core.files import DamagedFileError
from ampsim.runs import explain
from ampsim.runs.record.run_file import (
    BINS,
    RunFile,
    pack_counts,
    read_run,
    records,
    unpack_counts,
)
from tests.examples import examples
from tests.test_cli import run

RECORD = st.fixed_dictionaries(
    {"step": st.integers(0, 10**9)},
    optional={
        "loss_scale": st.floats(allow_nan=False),
        "grad_norm": st.floats(allow_nan=False),
        "nonfinite": st.dictionaries(
            st.text(), st.sampled_from(["has inf", "has nan"])
        ),
    },
)


@settings(max_examples=examples(ms=3))
@given(st.lists(RECORD, max_size=4), st.integers(0, 400))
@example([{"step": 0, "grad_norm": math.inf}], 0)
def test_a_cut_file_keeps_whole_lines(tmp_path_factory, kept, cut):
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


@pytest.mark.parametrize(
    "text",
    ["loss 3.2\n", "[" * 10**5, '{"run":1,"format":1}\n', '{"run":{},"format":9}\n'],
)
def test_other_file_raises(tmp_path, text):
    path = tmp_path / "train.log"
    path.write_text(text)
    with pytest.raises(ValueError, match="expected the file of a watched run"):
        RunFile(path, {})
    with pytest.raises(ValueError, match="expected the file of a watched run"):
        list(records(path))
    assert path.read_text() == text


def test_a_full_disk_leaves_nothing(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "run.jsonl"
    with RunFile(path, {}) as file:
        before = path.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 9, limits[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                file.append({"step": 0, "grad_norm": 1.0})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == before
        file.append({"step": 0})
    assert list(records(path)) == [{"step": 0}]


@settings(max_examples=examples(ms=3))
@given(st.dictionaries(st.integers(0, BINS - 1), st.integers(1, 2**40)))
@example({0: 1, BINS - 1: 3})
def test_histogram_round_trips(counts):
    histogram = np.zeros(BINS, np.int64)
    histogram[list(counts)] = list(counts.values())
    assert np.array_equal(unpack_counts(pack_counts(histogram)), histogram)


def test_only_a_writer_locks_the_file(tmp_path):
    path, (waits, begins), (reader, writer) = (
        tmp_path / "run.jsonl",
        os.pipe(),
        os.pipe(),
    )
    with RunFile(path, {}):
        child = os.fork()
        if not child:  # a worker of a DataLoader, which outlives the run
            os.close(writer)
            os.write(begins, b"!")
            os.read(reader, 1)
            os._exit(0)
        os.read(waits, 1)
        with pytest.raises(BlockingIOError):
            RunFile(path, {})
    RunFile(path, {}).close()
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0


def test_invalid_record_writes_nothing(tmp_path):
    path = tmp_path / "new" / "folder" / "run.jsonl"
    with RunFile(path, {}) as file:
        with pytest.raises(TypeError):
            file.append({"step": 0, "loss": object()})
        file.append({"step": 1})
    assert list(records(path)) == [{"step": 1}]


DAMAGED = [
    '{"step": ',
    f'{{"step":{2**53}}}',
]


@pytest.mark.parametrize("line", DAMAGED)
def test_damaged_line_is_reported(tmp_path, line):
    (tmp_path / "run.jsonl").write_text(
        f'{{"run":{{}},"format":1}}\n{line}\n{{"step":1}}\n'
    )
    with pytest.raises(DamagedFileError, match="line 2"):
        list(records(tmp_path / "run.jsonl"))


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([10**400, 1.5, "x"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.just("w"), inner),
)
KEYS = [
    "step",
    "loss_scale",
    "skipped",
    "grad_norm",
    "nonfinite",
    "exponent_histograms",
]


@settings(max_examples=examples(ms=5))
@given(st.sampled_from(KEYS), ANY)
@example(
    "exponent_histograms",
    {"w": {"zeros": 0, "inf": 0, "nan": 0, "counts": [[1], 2], "lowest": "x"}},
)
def test_any_record_is_read_or_raises(tmp_path_factory, key, value):
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    record = {"step": 3, "loss_scale": 8.0, "skipped": True, key: value}
    path.write_text(f'{{"run":{{}},"format":1}}\n{json.dumps(record)}\n')
    with suppress(ValueError):
        explain(path)


@given(st.characters(categories=["Cc"]))
@example("\x9b")
def test_names_send_no_control_characters(tmp_path_factory, code):
    assume(code not in "\t\n")
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    with RunFile(path, {}) as file:
        bad = {f"w{code}[2J": "has inf"}
        file.append(
            {"step": 0, "skipped": True, "warning": f"a{code}]0;b", "nonfinite": bad}
        )
    shown = run("explain", str(path))[1]
    assert "]0;b" in shown
    assert code not in shown
