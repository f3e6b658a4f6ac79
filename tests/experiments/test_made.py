"""`--reproduce` runs what was not made here, though it is up to date, and says whether it repeats."""

from pathlib import Path

import pytest

from ampsim import records
from experiments.runner import made_here


def write(path: Path, rows: list[dict[str, object]], **provenance: object) -> None:
    records.write(path, {"config": {"steps": 1}, "inputs_sha256": {}, "commit": "a" * 40, **provenance}, rows)


def test_a_file_is_marked_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write(path, [{"a": 1}])
    assert not made_here.is_marked(path)  # as in a clone: the file is there, the mark is not
    made_here.mark(path)
    assert made_here.is_marked(path)
    write(path, [{"a": 2}])
    assert not made_here.is_marked(path)


def test_the_comparison_counts_equal_records(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write(path, [{"a": 1.0}, {"a": 2.0}])
    before = made_here.earlier(path, {"steps": 1}, {})
    assert made_here.compare(before, path) == "all 2 records equal those from aaaaaaaaaaaa, to the last bit"
    write(path, [{"a": 1.0}, {"a": 2.0000000000000004}])
    assert made_here.compare(before, path).startswith("1 of 2 records equal those from aaaaaaaaaaaa")


@pytest.mark.parametrize("config", [{"steps": 2}, None])
def test_another_question_is_not_compared(tmp_path: Path, config: object) -> None:
    path = tmp_path / "x.jsonl"
    assert made_here.earlier(path, config, {}) is None
    write(path, [{"a": 1}])
    assert made_here.earlier(path, config, {}) is None


def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("{")
    assert made_here.earlier(path, {"steps": 1}, {}) is None
