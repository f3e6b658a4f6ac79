"""The picture of a report's page is that of the docs' recorded run, which collapses."""

from ampsim.diagnose.explain import findings
from ampsim.diagnose.readers.run import read_own
from figures import screenshot


def test_screenshot_matches_committed_run() -> None:
    cure = "run `python -m figures.screenshot`, look at figures/report.png, and commit it"
    assert screenshot.taken_of(screenshot.PICTURE) == screenshot.sha256(), cure


def test_recorded_collapse_matches_docs() -> None:
    history = read_own(screenshot.RUN)
    assert history.every_step
    assert [each.kind for each in findings(history)] == ["collapse", "loss-not-finite"]
    assert "collapses from step 313 on" in (
        screenshot.RUN.parents[1] / "how-to/record.md"
    ).read_text(encoding="utf-8")
