"""The picture of a report's page is that of the docs' recorded run, which collapses."""

from ampsim.runs.explain_log import explain
from figures import screenshot


def test_screenshot_matches_committed_run() -> None:
    cure = (
        "run `python -m figures.screenshot`, look at figures/report.png, and commit it"
    )
    assert screenshot.taken_of(screenshot.PICTURE) == screenshot.sha256(), cure


def test_recorded_collapse_matches_docs() -> None:
    problems = explain(screenshot.RUN).problems
    assert [finding.id for finding in problems] == ["loss-not-finite"]
    assert "The loss scale had fallen" in problems[0].message
    assert "collapses from step 313 on" in (
        screenshot.RUN.parents[1] / "how-to/record.md"
    ).read_text(encoding="utf-8")
