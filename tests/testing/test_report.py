"""The report: checks x scalers as Markdown and JSON."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")

from ampsim.testing.check import (
    Check,
    Result,
    by_cause,
    findings,
    raise_findings,
    stating,
)
from ampsim.testing.report import FORMATS, Report
from ampsim.testing.scaler_checks import CHECKS
from ampsim.testing.scaler_checks.run import chosen

chosen()
BUDGET, NORMAL = CHECKS["skips_stay_within_budget"], CHECKS["scale_is_never_subnormal"]
FELL = "scale_is_never_subnormal: the scale fell to <0>\n  history  inf x 8"
RESULTS = [
    Result(NORMAL, "theirs", "failed", FELL),
    Result(BUDGET, "theirs", "passed"),
    Result(
        BUDGET,
        "ours",
        "xpassed",
        "skips_stay_within_budget passed, but was expected to fail",
    ),
    Result(NORMAL, "ours", "xfailed", "no floor"),
]
REPORT = Report(RESULTS)


def test_rows_are_checks_and_columns_scalers():
    assert REPORT.scalers == ["theirs", "ours"]
    assert [
        (check.name, [result.outcome for result in results])
        for check, results in REPORT.rows()
    ] == [
        ("skips_stay_within_budget", ["passed", "xpassed"]),
        ("scale_is_never_subnormal", ["failed", "xfailed"]),
    ]


def test_missing_result_is_empty_cell():
    *_, (check, results) = Report(
        [*RESULTS[:2], Result(BUDGET, "third", "passed")]
    ).rows()
    assert (check.name, results[1]) == ("scale_is_never_subnormal", None)


def test_findings_are_failed_and_xpassed():
    assert REPORT.findings == [RESULTS[0], RESULTS[2]]
    assert "1 passed, 1 failed of 2 checks" in REPORT.summary()[0]


def test_markdown_has_a_row_per_check():
    rows = [
        line.strip("| ").split(" | ")
        for line in REPORT.to_markdown().splitlines()
        if line.startswith("| L")
    ]
    assert [row[:2] for row in rows] == [
        ["L0", "`skips_stay_within_budget`"],
        ["L5", "`scale_is_never_subnormal`"],
    ]
    assert (
        len({rows[0][2], rows[0][3], rows[1][2], rows[1][3]}) == 4
    )  # a sign of its own for each outcome
    assert "history  inf x 8" in REPORT.to_markdown()
    assert "- ours: scale_is_never_subnormal xfailed: no floor" in REPORT.to_markdown()


def test_json_has_a_record_per_result():
    read = json.loads(REPORT.to_json())
    assert read["findings"] == 2
    named = ("scaler", "check", "outcome", "level", "property", "text")
    assert [tuple(each[name] for name in named) for each in read["results"]] == [
        (
            it.target,
            it.check.name,
            it.outcome,
            it.check.level,
            it.check.statement,
            it.text,
        )
        for it in RESULTS
    ]
    assert (
        read["results"][0]["issue"]
        == "https://github.com/pytorch/pytorch/issues/157436"
    )


def test_report_shows_skip_reasons():
    of_loop = Result(replace(NORMAL, label="loop"), "mine", "skipped", "no split=")
    report = Report([*RESULTS, of_loop, Result(BUDGET, "third", "skipped", "no floor")])
    text = report.to_markdown()
    assert "mine: scale_is_never_subnormal skipped: no split=" in text
    assert "third: 1 skipped" in text
    assert "third: skips_stay_within_budget skipped: no floor" in text


def test_all_formats_write_empty_reports():
    for write in FORMATS.values():
        assert write(Report([])) != write(REPORT)


def told(check, seen, history="inf", target="theirs"):
    story = f"\n  property {check.statement}\n  scaler   init_scale=1.0\n  history  {history}\n  scale    1.0 -> 2.0"
    raised = seen if seen.startswith("raised ") else ""
    text = f"{check.name}: {seen}{story}"
    return Result(check, target, "failed", text, raised=raised)


def test_hint_of_an_exception_is_none():
    quoted = told(BUDGET, "raised OSError: 5\n  hint     try again")
    other = told(NORMAL, "rose")
    assert [each for each, _ in by_cause([quoted, other])] == [quoted, other]


def test_findings_with_one_cause_are_merged():
    first, same, other = (
        told(BUDGET, "raised OSError: 5"),
        told(NORMAL, "raised OSError: 5"),
        told(NORMAL, "raised OSError: 5", target="ours"),
    )
    report = Report([first, same, other])
    assert [each for each, _ in report.at_length()] == [first, other]
    assert report.at_length()[0][1].endswith("also     scale_is_never_subnormal")
    assert len(report.findings) == json.loads(report.to_json())["findings"] == 3
    apart = [told(BUDGET, "rose"), told(NORMAL, "rose")]
    assert len(Report(apart).at_length()) == 2
    causes = [
        replace(apart[0], text=f"{apart[0].text}\n  cause    {n}") for n in range(2)
    ]
    assert len(Report(causes).at_length()) == 2
    hinted = [
        replace(each, text=f"{each.text}\n  hint     a min_scale", hint="a min_scale")
        for each in apart
    ]
    assert len(Report(hinted).at_length()) == 1
    assert [each for each, _ in by_cause([hinted[0], apart[1]])] == [
        apart[1],
        hinted[0],
    ]


def test_aborted_check_is_no_finding():
    late = Result(
        BUDGET,
        "theirs",
        "failed",
        "skips_stay_within_budget: did not end",
        is_overdue=True,
    )
    given_up = Result(
        NORMAL, "theirs", "error", "theirs cannot be checked", is_overdue=True
    )
    other = Result(NORMAL, "theirs", "failed", "scale_is_never_subnormal: fell")
    assert Report([late]).findings == [late]
    assert Report([late, given_up]).findings == []
    assert Report([late, Result(NORMAL, "theirs", "error", "it raised")]).findings == [
        late
    ]
    assert Report([late, replace(given_up, target="ours")]).findings == [late]
    with pytest.raises(AssertionError, match=f"^{other.text}\n\n{given_up.text}$"):
        raise_findings([other, given_up])


def test_hang_with_error_is_a_finding():
    error = Result(NORMAL, "theirs", "error", "ValueError")
    hang = Result(BUDGET, "theirs", "failed", "no end", is_overdue=True)
    assert findings([error, hang]) == [hang]
    given_up = Result(NORMAL, "theirs", "error", "given up", is_overdue=True)
    assert findings([given_up, hang]) == []


def test_scalers_keep_separate_errors():
    text = "scale_is_never_subnormal: raised ValueError: no"
    both = [Result(NORMAL, name, "failed", text) for name in ("theirs", "ours")]
    assert len(by_cause(both)) == 2
    twice = [Result(check, "theirs", "failed", text) for check in (NORMAL, BUDGET)]
    assert len(by_cause(twice)) == 1


def test_second_check_of_a_name_raises() -> None:
    def is_even() -> None:
        """Numbers are even."""

    checks: dict[str, Check] = {}
    stating(Check, checks, level=0)(is_even)
    with pytest.raises(ValueError, match="'is_even' exists"):
        stating(Check, checks, level=0)(is_even)
