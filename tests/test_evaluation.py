"""The numbers of docs/evaluation.md are those of its data."""

import json
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = " ".join((ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8").split())
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
DATA = ROOT / "experiments" / "inputs" / "first_sight.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
LOGS, SCRIPTS, FILES = range(1, 7), range(1, 6), range(1, 6)
HEALTHY = "no problem found"


def of(tool, sample=None):
    return [
        row for row in ROWS if row["of"] == tool and sample in (None, row["sample"])
    ]


def defects(tool, sample):
    return [defect for row in of(tool, sample) for defect in row["defects"]]


def found(tool, sample):
    marked = defects(tool, sample)
    return f"{sum(defect['first'] for defect in marked)} of {len(marked)}"


def logs(sample=None, *, certain=True):
    return [row for row in of("explain", sample) if row["certain"] is certain]


def verdicts(rows):
    return Counter((row["truth"], row["first"]) for row in rows)


def records(stem):
    path = ROOT / "experiments" / "data" / "cpu" / f"{stem}.jsonl"
    return [
        json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]
    ]


def test_log_verdicts_match_data():
    counts = [verdicts(logs(sample)) for sample in LOGS]
    for truth, name in (("problem", "a problem"), (HEALTHY, "no problem")):
        totals = [
            sum(n for (is_, _), n in count.items() if is_ == truth) for count in counts
        ]
        table = TEXT[TEXT.index(f"| {name} ({', '.join(map(str, totals))}) |") :]
        unread = [
            count[truth, "too little to tell"] + count[truth, "unreadable"]
            for count in counts
        ]
        undecided = "too little to tell, or unreadable"
        assert f"| {undecided} | {' | '.join(map(str, unread))} |" in table
        for verdict in ("problem", HEALTHY):
            cells = " | ".join(str(count[truth, verdict]) for count in counts)
            assert f"| {verdict} | {cells} |" in table


def test_log_sentences_match_data():
    rows = [row for row in logs() if row["truth"] != "too little to tell"]
    last = [row for row in rows if row["sample"] == LOGS[-1]]
    undecided = sum(row["first"] not in ("problem", HEALTHY) for row in last)
    assert f"{undecided} of {len(last)} such logs are undecided" in TEXT
    for sample, words in ((5, "{} of the 15 have"), (6, "{} of them have")):
        short = [
            row
            for row in rows
            if row["sample"] == sample
            and row["first"] not in ("problem", HEALTHY)
            and row["lines"] < 15
        ]
        assert f"{words.format(len(short))} fewer than 15 lines" in TEXT
    words = Counter(row["truth"] for row in rows if row["says_nan"])
    totals = Counter(row["truth"] for row in rows)
    assert f"finds {words['problem']} of the {totals['problem']} problems" in TEXT
    assert f"flags {words[HEALTHY]} of the {totals[HEALTHY]} healthy logs" in TEXT
    judged = verdicts(logs(certain=False))
    healthy, sick = (
        sum(n for (truth, _), n in judged.items() if truth == name)
        for name in (HEALTHY, "problem")
    )
    assert f"a problem in {judged[HEALTHY, 'problem']} of {healthy} logs" in TEXT
    assert f"cleared {judged['problem', HEALTHY]} of {sick} that" in TEXT


def test_script_results_match_data():
    rows = [of("check-loop", sample) for sample in SCRIPTS]
    ran = [
        f"{sum(row['exit_first'] in (0, 1) for row in each)} of {len(each)}"
        for each in rows
    ]
    right = [[row for row in each if not row["defects"]] for each in rows]
    accused = [
        f"{sum(row['exit_first'] == 1 for row in each)} of {len(each)}"
        for each in right
    ]
    for cells in ([found("check-loop", sample) for sample in SCRIPTS], ran, accused):
        assert f"| {' | '.join(cells)} |" in TEXT


def test_cost_of_checked_scripts_matches_data():
    costs = [row["cpu_seconds"] for row in of("check-loop") if "cpu_seconds" in row]
    ratios = [cost["checked"] / cost["alone"] for cost in costs]
    alone, checked = (
        sum(cost[kind] for cost in costs) for kind in ("alone", "checked")
    )
    assert (
        f"{checked / alone:.1f} times the CPU time of a run alone "
        f"({min(ratios):.1f} to {max(ratios):.1f} times)"
    ) in TEXT


def test_lint_recall_matches_data():
    cells = [found("lint", sample) for sample in FILES]
    assert f"| {' | '.join(cells)} |" in TEXT


def test_lint_precision_matches_data():
    def total(sample):
        return sum(
            (Counter(row["findings_first"]) for row in of("lint", sample)), Counter()
        )

    second, third, fourth, fifth = map(total, (2, 3, 4, 5))
    files = sum(row["findings_first"]["false"] > 0 for row in of("lint", 2))
    assert f"{second['true']} of {second.total()} errors and warnings are true" in TEXT
    assert f"others are in {files} files" in TEXT
    assert (
        f"{third['true']} of {third.total()} are true, and {third['doubtful']} are doubtful"
        in TEXT
    )
    assert (
        f"Of the {fifth.total()} errors and warnings, {fifth['certain']} are at a certain defect, "
        f"{fifth['judgment']} at a judgment, and {fifth['elsewhere']} is false"
    ) in TEXT
    assert (
        f"Of the {fourth.total()} errors and warnings there, {fourth['certain']} are at a certain defect, "
        f"{fourth['judgment']} at a judgment of the reader's list, and {fourth['elsewhere']} are"
    ) in TEXT


def test_readme_counts_match_data():
    counts = verdicts(logs(LOGS[-1]))
    sick, healthy = (
        sum(n for (truth, _), n in counts.items() if truth == name)
        for name in ("problem", HEALTHY)
    )
    cleared, flagged = counts[HEALTHY, HEALTHY], counts[HEALTHY, "problem"]
    assert (
        f"| `explain` | {counts['problem', 'problem']} of {sick} logs; "
        f"{counts['problem', HEALTHY]} called healthy | {flagged} of {healthy} healthy logs; "
        f"{cleared} cleared, {healthy - cleared - flagged} undecided |"
    ) in README
    lint, loops = (
        f"{found('lint', 5)} in files (sample before: {found('lint', 4)})",
        f"{found('check-loop', 5)} in scripts (sample before: {found('check-loop', 4)})",
    )
    assert f"| `lint` | {lint} |" in README
    assert f"| `check-loop` | {loops} |" in README
    for held_out, words in (
        (False, "followed logs"),
        (True, "of repositories that were not read"),
    ):
        followed = [
            run
            for row in records("cuda_runs")
            if row["settings"]["held_out"] == held_out
            for run in row["runs"]
            if "breaks" in run
        ]
        whole = sum(not run["breaks"] for run in followed)
        assert f"{whole} of {len(followed)} {words}" in README
