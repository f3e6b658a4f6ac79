"""Shards of a run make the file that one machine would have written."""

from pathlib import Path

import pytest

from ampsim import records
from ampsim.core.files import sole_writer
from experiments import runner
from experiments.__main__ import main as experiments_main
from experiments.runner import earlier, pool, provenance


@pytest.fixture(autouse=True)
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every run end at once, on one day and at no commit."""
    monkeypatch.setattr(pool, "cpu_seconds", lambda: 0.0)
    monkeypatch.setattr(provenance, "now", lambda: "2026-01-01")
    monkeypatch.setenv("PATH", "/nowhere")  # without git: another commit may be made meanwhile


def run(folder: Path, *more: str) -> int:
    return runner.main("tiny", ["--jobs", "1", "--out", str(folder / "x.jsonl"), *more])


@pytest.mark.parametrize("total", [3, 7])  # of four units
def test_merged_shards_are_the_whole(total: int, folder: Path) -> None:
    assert run(folder) == 0
    whole = folder / "x.jsonl"
    expected = whole.read_bytes()
    whole.unlink()
    for number in range(1, total + 1):
        assert run(folder, f"--shard={number}/{total}") == 0
    files = sorted(map(str, folder.glob("x.*-of-*.jsonl")), reverse=True)
    assert len(files) == total
    assert experiments_main(["merge", *files]) == 0
    assert whole.read_bytes() == expected


def test_shards_of_two_runs_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--shard=1/2") == 0
    first, second = str(folder / "x.1-of-2.jsonl"), str(folder / "x.2-of-2.jsonl")
    assert experiments_main(["merge", first]) == 2
    assert "2/2" in capsys.readouterr().err
    assert run(folder, "--shard=2/2", "--factor", "7") == 0
    assert experiments_main(["merge", first, second]) == 2
    assert "factor: 0.1 then, 7.0 now" in capsys.readouterr().err
    assert not (folder / "x.jsonl").exists()


def test_a_file_has_one_writer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_a_file_stays_while_it_is_true(change: dict[str, object], keeps: bool, tmp_path: Path) -> None:
    records.write(tmp_path / "x.jsonl", ORIGIN, [{"a": 1.0}, {"a": 2.0}])
    before = earlier.earlier(tmp_path / "x.jsonl", {"steps": 1}, {})
    assert before is not None
    assert before.keeps({**ORIGIN, **change}, [{"a": 1.0}, {"a": 2.0}]) is keeps
    off = [{"a": 1.0}, {"a": 2.0000000000000004}]
    assert not before.keeps({**ORIGIN, **change}, off)
    assert "1 of 2 records" in before.compare(off)
    assert earlier.earlier(tmp_path / "x.jsonl", {"steps": 2}, {}) is None
