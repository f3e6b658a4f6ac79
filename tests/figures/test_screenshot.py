"""The picture of a report's page is that of the recorded run, which collapses."""

from pathlib import Path

from ampsim.diagnose.explain import findings
from ampsim.diagnose.readers.run import read_own
from ampsim.run_file import records
from figures import screenshot


def test_the_picture_is_of_the_committed_records() -> None:
    cure = "run `python -m figures.screenshot`, look at figures/report.png, and commit it"
    assert screenshot.taken_of(screenshot.PICTURE) == screenshot.sha256(), cure


def test_the_recorded_run_collapses_and_its_file_comes_back(tmp_path: Path) -> None:
    path = screenshot.run_file(tmp_path / "run.jsonl")
    (record,) = screenshot.recorded().records
    assert str(list(records(path))) == str(record["records"])  # text, as NaN is no equal of NaN
    history = read_own(path)
    assert history.every_step
    assert "collapse" in [each.kind for each in findings(history)]
