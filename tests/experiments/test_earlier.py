"""How a run stands to the data that was there before."""

from pathlib import Path

import pytest

from ampsim import records
from experiments.runner import earlier

ORIGIN = {
    "config": {"steps": 1}, "inputs_sha256": {}, "commit": "a" * 40, "dirty": False, "source_sha256": "s",
    "versions": {"python": "3.12.1", "torch": "2.13.0", "numpy": "1"}, "device": {"name": "a CPU"},
}  # fmt: skip


def write(path: Path, rows: list[dict[str, object]], **origin: object) -> None:
    records.write(path, {**ORIGIN, **origin}, rows)


def before(path: Path) -> earlier.Earlier:
    found = earlier.earlier(path, {"steps": 1}, {})
    assert found is not None
    return found


def test_the_comparison_counts_equal_records_and_names_the_other_machine(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write(path, [{"a": 1.0}, {"a": 2.0}])
    equal = [{"settings": {"k": 1}, "a": 1.0}, {"settings": {"k": 1}, "a": 2.0}]
    assert before(path).compare(equal) == "equal to the data of aaaaaaaaaaaa to the last bit"
    assert before(path).compare([*equal, {"a": 3.0}]).startswith("differs: 2 of 2 records equal those of aaaaaaaaaaaa")
    assert before(path).compare(equal[:1]).startswith("differs: 1 of 2 records equal")
    off = [{"a": 1.0}, {"a": 2.0000000000000004}]
    assert before(path).compare(off) == "differs: 1 of 2 records equal those of aaaaaaaaaaaa, made on a CPU"


@pytest.mark.parametrize(
    ("change", "keeps"),
    [
        ({}, True),
        ({"commit": "b" * 40, "device": {"name": "another CPU"}}, True),
        ({"versions": {"python": "3.13.0", "torch": "2.13.0", "wandb": "2"}}, True),  # not of what both have
        ({"versions": {"python": "3.12.1", "torch": "2.12.0"}}, False),
        ({"versions": {"torch": "2.13.0", "numpy": "2"}}, False),
        ({"versions": {"python": "3.12.1", "numpy": "2"}}, False),
        ({"source_sha256": "t"}, False),
        ({"dirty": True}, True),
    ],
)
def test_a_file_stays_while_what_it_says_is_true_of_today(
    change: dict[str, object], keeps: bool, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    write(path, [{"a": 1.0}])
    assert before(path).keeps({**ORIGIN, **change}, [{"a": 1.0}]) is keeps
    assert not before(path).keeps({**ORIGIN, **change}, [{"a": 1.5}])
    assert not before(path).keeps({**ORIGIN, **change}, [{"settings": {}, "a": 1.0}])


def test_data_from_uncommitted_changes_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write(path, [{"a": 1.0}], dirty=True)
    assert not before(path).keeps(ORIGIN, [{"a": 1.0}])


@pytest.mark.parametrize("config", [{"steps": 2}, None])
def test_another_question_is_not_compared(tmp_path: Path, config: object) -> None:
    path = tmp_path / "x.jsonl"
    assert earlier.earlier(path, config, {}) is None
    write(path, [{"a": 1}])
    assert earlier.earlier(path, config, {}) is None


def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("{")
    assert earlier.earlier(path, {"steps": 1}, {}) is None


@pytest.mark.parametrize(
    ("commit", "said"), [("0123456789abcdef", "0123456789ab"), (None, "no commit"), ("", "no commit")]
)
def test_a_commit_is_told_in_twelve_digits(commit: str | None, said: str) -> None:
    assert earlier.Earlier({"commit": commit}, []).commit == said
