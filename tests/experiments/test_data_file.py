"""A data file has one writer, and stays as it is while it is true."""

from pathlib import Path

import pytest

from ampsim.core.files import sole_writer
from ampsim.runs.record import data_file
from experiments import runner
from experiments.runner import previous_data


def run(folder: Path) -> int:
    return runner.main("tiny", ["--jobs", "1", "--out", str(folder / "x.jsonl")])


def test_a_file_has_one_writer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sole_writer(folder / "x.jsonl"):
        assert run(folder) == 2
    assert "x.jsonl" in capsys.readouterr().err
    assert not (folder / "x.jsonl").exists()
    assert run(folder) == 0


ORIGIN = {
    "config": {"steps": 1},
    "inputs_sha256": {},
    "commit": "a" * 40,
    "dirty": False,
    "source_sha256": "s",
    "versions": {"python": "3.12.1", "torch": "2.13.0"},
}


@pytest.mark.parametrize(
    ("change", "keeps"),
    [
        ({}, True),
        ({"commit": "b" * 40}, True),
        ({"versions": {"python": "3.13.0", "torch": "2.13.0"}}, True),
        ({"versions": {"python": "3.12.1", "torch": "2.12.0"}}, False),
        ({"source_sha256": "t"}, False),
    ],
)
def test_file_is_kept_while_valid(
    change: dict[str, object], keeps: bool, tmp_path: Path
) -> None:
    data_file.write(tmp_path / "x.jsonl", ORIGIN, [{"a": 1.0}, {"a": 2.0}])
    before = previous_data.earlier(tmp_path / "x.jsonl", {"steps": 1}, {})
    assert before is not None
    assert before.keeps({**ORIGIN, **change}, [{"a": 1.0}, {"a": 2.0}]) is keeps
    off = [{"a": 1.0}, {"a": 2.0000000000000004}]
    assert not before.keeps({**ORIGIN, **change}, off)
    assert "1 of 2 records" in before.compare(off)
    assert previous_data.earlier(tmp_path / "x.jsonl", {"steps": 2}, {}) is None
