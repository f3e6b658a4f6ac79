"""The numbers of docs/evaluation.md are those of its data."""

import json
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
DATA = ROOT / "experiments" / "inputs" / "first_sight.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
COLUMNS = ("before", "first", "repaired")


def test_log_verdicts_match_data():
    logs = [row for row in ROWS if row["of"] == "explain" and row["certain"]]
    counts = {
        name: Counter(
            (row["truth"], row[name].replace("unreadable", "too little to tell")) for row in logs
        )
        for name in COLUMNS
    }
    undecided = "too little to tell, or unreadable"
    for truth, head, other in (
        ("problem", "a problem (15)", "too little to tell"),
        ("no problem found", "no problem (63)", undecided),
    ):
        table = TEXT[TEXT.index(f"| {head} |") :]
        for verdict, label in ((truth, truth), ("too little to tell", other)):
            cells = " | ".join(str(counts[name][truth, verdict]) for name in COLUMNS)
            assert f"| {label} | {cells} |" in table
        opposite = "no problem found" if truth == "problem" else "problem"
        cells = " | ".join(str(counts[name][truth, opposite]) for name in COLUMNS)
        assert f"| {opposite} | {cells} |" in table


def test_script_results_match_data():
    scripts = [row for row in ROWS if row["of"] == "check-loop"]
    defects = [defect for row in scripts for defect in row["defects"]]
    right = [row for row in scripts if not row["defects"]]
    cells = {
        name: (
            f"{sum(defect[name] for defect in defects)} of {len(defects)}",
            f"{sum(row[f'exit_{name}'] in (0, 1) for row in scripts)} of {len(scripts)}",
            f"{sum(row[f'exit_{name}'] == 1 for row in right)} of {len(right)}",
        )
        for name in ("first", "repaired")
    }
    for first, repaired in zip(*cells.values(), strict=True):
        assert f"| {first} | {repaired} |" in TEXT


def test_lint_recall_matches_data():
    files = [row for row in ROWS if row["of"] == "lint"]
    defects = [defect for row in files for defect in row["defects"]]
    page = (ROOT / "docs" / "lint" / "README.md").read_text(encoding="utf-8")
    before, first, repaired = (sum(defect[name] for defect in defects) for name in COLUMNS)
    assert (
        f"| {first} of {len(defects)} (rules before they were rewritten: {before}) | {repaired} of {len(defects)} |"
        in page
    )
