"""The numbers of docs/evaluation.md are those of its data."""

import json
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
DATA = ROOT / "experiments" / "inputs" / "first_sight.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
COLUMNS = [(1, "before"), (1, "first"), (1, "repaired"), (2, "before"), (2, "first")]


def of(tool, sample):
    return [row for row in ROWS if row["of"] == tool and row["sample"] == sample]


def defects(tool, sample):
    return [defect for row in of(tool, sample) for defect in row["defects"]]


def records(stem):
    path = ROOT / "experiments" / "data" / "cpu" / f"{stem}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]


def test_log_verdicts_match_data():
    undecided = "too little to tell, or unreadable"
    for truth, head in (
        ("problem", "a problem (15, 44)"),
        ("no problem found", "no problem (63, 42)"),
    ):
        table = TEXT[TEXT.index(f"| {head} |") :]
        counts = [
            Counter(
                row[name]
                for row in of("explain", sample)
                if row["certain"] and row["truth"] == truth
            )
            for sample, name in COLUMNS
        ]
        unread = [count["too little to tell"] + count["unreadable"] for count in counts]
        assert f"| {undecided} | {' | '.join(map(str, unread))} |" in table
        for verdict in ("problem", "no problem found"):
            cells = " | ".join(str(count[verdict]) for count in counts)
            assert f"| {verdict} | {cells} |" in table


def test_script_results_match_data():
    found, ran, accused = [], [], []
    for sample, name in ((1, "first"), (1, "repaired"), (2, "first")):
        rows, marked = of("check-loop", sample), defects("check-loop", sample)
        right = [row for row in rows if not row["defects"]]
        found.append(f"{sum(defect[name] for defect in marked)} of {len(marked)}")
        ran.append(f"{sum(row[f'exit_{name}'] in (0, 1) for row in rows)} of {len(rows)}")
        accused.append(f"{sum(row[f'exit_{name}'] == 1 for row in right)} of {len(right)}")
    for cells in (found, ran, accused):
        assert f"| {' | '.join(cells)} |" in TEXT


def test_lint_recall_matches_data():
    cells = [
        f"{sum(defect[name] for defect in defects('lint', sample))} of {len(defects('lint', sample))}"
        for sample, name in [*COLUMNS, (3, "before"), (3, "first")]
    ]
    assert f"| {' | '.join(cells)} |" in TEXT


def test_readme_counts_match_data():
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    logs = [row for row in of("explain", 2) if row["certain"]]
    counts = Counter((row["truth"], row["first"]) for row in logs)
    sick = sum(row["truth"] == "problem" for row in logs)
    assert (
        f"of {sick} with a certain problem it recognized {counts['problem', 'problem']}" in readme
    )
    assert counts["problem", "no problem found"] == 0
    healthy = sum(row["truth"] == "no problem found" for row in logs)
    cleared, flagged = (
        counts["no problem found", "no problem found"],
        counts["no problem found", "problem"],
    )
    assert f"of {healthy} healthy ones it cleared {cleared} and flagged {flagged}" in readme
    found = defects("lint", 3)
    assert f"{sum(row['first'] for row in found)} of {len(found)} certain defects" in readme
    for held_out, words in ((False, "followed logs"), (True, "of repositories that were not read")):
        followed = [
            run
            for row in records("cuda_runs")
            if row["settings"]["held_out"] == held_out
            for run in row["runs"]
            if "breaks" in run
        ]
        whole = sum(not run["breaks"] for run in followed)
        assert f"{whole} of {len(followed)} {words}" in readme


def test_lint_precision_matches_data():
    findings = [row["findings_first"] for row in of("lint", 2)]
    true, false = (sum(row[verdict] for row in findings) for verdict in ("true", "false"))
    files = sum(row["false"] > 0 for row in findings)
    assert f"{true} of {true + false} errors and warnings are true" in TEXT
    assert f"others are in {files} files" in TEXT
    findings = [row["findings_first"] for row in of("lint", 3)]
    true, doubtful = (sum(row[verdict] for row in findings) for verdict in ("true", "doubtful"))
    assert f"{true} of {true + doubtful} are true, and {doubtful} are doubtful" in TEXT
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert (
        f"{true} of {true + doubtful} errors and warnings were true and {doubtful} doubtful"
        in readme
    )
