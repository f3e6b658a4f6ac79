"""What the docs say of the rules' precision is what the judged findings say, and no rule is
imprecise.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

from ampsim.lint.engine import RULES
from figures.derived_numbers import wilson

DOCS = Path(__file__).parents[2] / "docs/lint"
PAGE = DOCS.parent / "evaluation-lint.md"
_, *FINDINGS = [
    json.loads(line) for line in (DOCS / "measured.jsonl").read_text().splitlines()
]
LEAST = 0.9


def counts(code: str, sample: str) -> tuple[int, int]:
    """True findings, and all."""
    found = [
        each["true"]
        for each in FINDINGS
        if each["code"] == code and each["sample"].startswith(sample)
    ]
    return sum(found), len(found)


def row(code: str) -> str:
    true, judged = counts(code, "")
    low, high = wilson(true, judged)
    parts = [
        f"{of} of {n}" if n else ""
        for of, n in (counts(code, "corpus"), counts(code, "unseen"))
    ]
    return (
        f"| {code} {RULES[code].name} | {' | '.join(parts)} | {low:.2f} to {high:.2f} |"
    )


CODES = sorted(
    {each["code"] for each in FINDINGS} & RULES.keys()
)  # a rule may have left


@pytest.mark.parametrize("code", CODES)
def test_table_matches_measured_findings(code: str) -> None:
    assert row(code) in PAGE.read_text().splitlines()


@pytest.mark.parametrize("code", CODES)
def test_rule_is_precise(code: str) -> None:
    true, judged = counts(code, "")
    assert true / judged >= LEAST


def test_measured_findings_name_their_source() -> None:
    for each in FINDINGS:
        assert {*each} - {"why"} == {
            "sample",
            "repository",
            "commit",
            "path",
            "line",
            "code",
            "true",
        }
        assert len(each["commit"]) == 40
        assert each["true"] or each["why"]
    assert (
        max(
            Counter(
                (e["repository"], e["path"], e["line"], e["code"]) for e in FINDINGS
            ).values()
        )
        == 1
    )


CONFIRMED = [
    json.loads(line) for line in (DOCS / "confirmed.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize(
    "code", sorted({each["code"] for each in CONFIRMED[1:]} & RULES.keys())
)
def test_second_table_matches_confirmed_findings(code: str) -> None:
    mine = [each for each in CONFIRMED[1:] if each["code"] == code]
    asked = [
        each["run"] in ("failed", "raised")
        for each in mine
        if each["run"] in ("failed", "raised", "passed")
    ]
    again = [each["read"] for each in mine if "read" in each]
    shown = [f"{sum(some)} of {len(some)}" if some else "" for some in (asked, again)]
    row = f"| {code} {RULES[code].name} | {shown[0]} | {len(mine) - len(asked)} | {shown[1]} |"
    assert row in PAGE.read_text().splitlines()
