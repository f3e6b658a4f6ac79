"""The report: checks x scalers as Markdown, JSON and a page that needs nothing else."""

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")

from ampsim.testing.kit.judge import chosen
from ampsim.testing.kit.laws import LAWS
from ampsim.testing.law import Result, without_findings
from ampsim.testing.report import COLOURS, FORMATS, SIGNS, Report

chosen()
BUDGET, NORMAL = LAWS["skip_budget"], LAWS["scale_stays_normal"]
REPORT = Report(
    [
        Result(NORMAL, "theirs", "failed", "scale_stays_normal: the scale fell to <0>\n  history  inf x 8"),
        Result(BUDGET, "theirs", "passed"),
        Result(
            BUDGET, "ours", "unexpected pass", "skip_budget passes, but was expected to fail: x; take it off the list"
        ),
        Result(NORMAL, "ours", "expected failure", "no floor"),
    ]
)


def test_rows_are_checks_by_level_and_columns_scalers():
    assert REPORT.scalers == ["theirs", "ours"]
    assert [(check.name, [result.outcome for result in results]) for check, results in REPORT.rows()] == [
        ("skip_budget", ["passed", "unexpected pass"]),
        ("scale_stays_normal", ["failed", "expected failure"]),
    ]


def test_what_passes_unexpectedly_names_what_may_be_why():
    unexpected = REPORT.results[2]
    broken = Result(NORMAL, "ours", "failed", "scale_stays_normal: the scale fell to 0")
    assert [text for _, text in Report([broken, unexpected]).at_length()] == [
        broken.text,
        f"{unexpected.text}, unless it holds because of scale_stays_normal",
    ]
    assert [text for _, text in REPORT.at_length()][1] == unexpected.text  # of another target


def test_a_check_that_was_not_run_on_one_scaler_is_an_empty_cell():
    rows = Report([*REPORT.results[:2], Result(BUDGET, "third", "passed")]).rows()
    assert [[result is None for result in results] for _, results in rows] == [[False, False], [False, True]]


def test_findings_are_failures_and_unexpected_passes():
    assert [(finding.target, finding.outcome) for finding in REPORT.findings] == [
        ("theirs", "failed"),
        ("ours", "unexpected pass"),
    ]
    assert REPORT.summary() == [
        "theirs: 1 passed, 1 failed of 2 checks",
        "ours: 1 failed as expected, 1 passed unexpectedly of 2 checks",
    ]


def test_markdown_is_a_table_and_the_findings():
    text = REPORT.to_markdown()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| L")]
    assert rows == [
        ["L0", "`skip_budget`", SIGNS["passed"], SIGNS["unexpected pass"]],
        ["L5", "`scale_stays_normal`", SIGNS["failed"], SIGNS["expected failure"]],
    ]
    assert "### theirs: `scale_stays_normal`" in text
    assert "  history  inf x 8" in text


def test_json_has_a_record_a_result():
    read = json.loads(REPORT.to_json())
    assert read["findings"] == 2
    assert read["versions"]["torch"]
    assert [(each["scaler"], each["check"], each["outcome"]) for each in read["results"]] == [
        (result.target, result.law.name, result.outcome) for result in REPORT.results
    ]
    assert read["results"][0]["issue"] == "https://github.com/pytorch/pytorch/issues/157436"


class Balanced(HTMLParser):
    """Fails on a tag that is closed and was not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells = 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.cells += tag == "td"
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_is_one_page_that_loads_nothing():
    text = REPORT.to_html()
    page = Balanced(text)
    assert not page.open
    assert page.cells == 2 * 3
    assert not re.search(r"<(script|link|img|iframe)|@import|url\(", text)
    assert "<pre>scale_stays_normal: the scale fell to &lt;0&gt;" in text  # a message is text, not markup


def test_xml_is_what_a_ci_server_reads_of_junit():
    told = Report(
        [
            *REPORT.results,
            Result(BUDGET, "hung", "refused", "late \x1b[31m<&>"),
            Result(NORMAL, "hung", "not applicable", "no floor"),
        ]
    )
    suites = {suite.get("name"): suite for suite in ET.fromstring(told.to_xml())}  # noqa: S314  our own
    counts = {
        name: [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] for name, suite in suites.items()
    }
    assert counts == {"theirs": ["2", "1", "0", "0"], "ours": ["2", "1", "0", "1"], "hung": ["2", "0", "1", "1"]}
    failed, passed = suites["theirs"]
    assert (failed.get("name"), passed.get("name")) == ("scale_stays_normal", "skip_budget")
    assert [(each.tag, each.text) for each in failed] == [("failure", REPORT.results[0].text)]
    assert not len(passed)
    assert [case[0].get("message") for case in suites["hung"]] == ["late \\x1b[31m<&>", "no floor"]


def test_every_outcome_has_a_sign_of_its_own_and_every_format_a_function():
    assert len(set(SIGNS.values())) == len(SIGNS) == 6
    assert {outcome for outcome, colour in COLOURS.items() if "red" in colour} == {
        "failed", "refused", "unexpected pass",
    }  # fmt: skip
    assert [outcome for outcome, colour in COLOURS.items() if colour == "green"] == ["passed"]
    assert set(FORMATS) == {"md", "json", "html", "xml"}


def test_findings_of_one_cause_are_told_as_one():
    def found(law, seen, history, outcome="failed", target="theirs"):
        story = f"\n  law      {law.law}\n  scaler   init_scale=1.0\n  history  {history}\n  scale    1.0 -> 2.0"
        return Result(law, target, outcome, f"{law.name}: {seen}{story}")

    first, same = found(BUDGET, "1.0 -> 2.0", "inf"), found(NORMAL, "did not fall", "inf")
    report = Report([first, same, found(NORMAL, "did not fall", "inf", target="ours")])
    assert [(each.target, each.law.name) for each, _ in report.at_length()] == [
        ("theirs", "skip_budget"),
        ("ours", "scale_stays_normal"),
    ]
    assert report.at_length()[0][1] == f"{first.text}\n  also     scale_stays_normal"
    assert len(report.findings) == json.loads(report.to_json())["findings"] == 3
    for raised, count in (("raised OSError: 5", 1), ("raised", 2)):
        other = [found(BUDGET, raised, "inf"), found(NORMAL, raised, "clean")]
        assert len(Report(other).at_length()) == count
    text = report.to_markdown()
    assert text.count("###") == 2
    with pytest.raises(AssertionError) as failure:
        without_findings([first, same])
    assert str(failure.value) == report.at_length()[0][1]


def test_what_is_refused_is_told_beside_findings_and_of_what_was_given_up_nothing_else():
    late = Result(BUDGET, "theirs", "failed", "skip_budget: did not end", is_overdue=True)
    given_up = Result(NORMAL, "theirs", "refused", "theirs cannot be judged: ...", is_overdue=True)
    other = Result(NORMAL, "theirs", "failed", "scale_stays_normal: fell")
    assert [each.law for each in Report([late]).findings] == [BUDGET]
    assert Report([late, given_up]).findings == []
    assert [each.law for each in Report([late, Result(NORMAL, "theirs", "refused", "it raised")]).findings] == [BUDGET]
    assert [text for _, text in Report([late, other, given_up]).at_length()] == [other.text, given_up.text]
    assert "### theirs: `scale_stays_normal`" in Report([late, given_up]).to_markdown()
    with pytest.raises(AssertionError, match=f"^{other.text}\n\n{given_up.text}$"):
        without_findings([other, given_up])
