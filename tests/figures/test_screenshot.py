"""The picture of a report's page is that of the docs' recorded run, which collapses."""

import re

from ampsim.runs.explain_log import explain
from figures import screenshot


def test_screenshot_matches_committed_run() -> None:
    cure = (
        "run `python -m figures.screenshot`, look at figures/report.png, and commit it"
    )
    assert screenshot.taken_of(screenshot.PICTURE) == screenshot.sha256(), cure


def test_recorded_collapse_matches_docs() -> None:
    page = screenshot.RUN.parents[1] / "how-to/record.md"
    (step,) = re.findall(r"inf from step (\d+) on", page.read_text(encoding="utf-8"))
    problems = explain(screenshot.RUN).problems
    assert [finding.id for finding in problems] == ["loss-not-finite"]
    assert f"from step {step} " in problems[0].message
