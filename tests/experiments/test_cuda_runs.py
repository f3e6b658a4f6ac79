"""What a log is said to contradict, the rule that wrote it cannot have done."""

import re
from collections import defaultdict
from math import log2
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim import Rule, replay
from experiments.corpus.follow import Row, follow, unpacked
from experiments.corpus.runs import Run, load, rule_of
from experiments.runner.provenance import ROOT
from figures import results
from figures.derived_numbers import cuda_runs
from tests.examples import examples

RULES = st.builds(
    Rule,
    st.just(2.0**40),
    growth_interval=st.integers(1, 7),
    hysteresis=st.integers(1, 3),
    hysteresis_reset=st.sets(st.sampled_from(["clean", "growth", "backoff"])),
    max_scale=st.sampled_from([None, 2.0**41]),
)


def log_of(
    data: st.DataObject, rule: Rule, shows: str, *, counts_skips: bool
) -> list[Row]:
    """Return the log of a generated run that prints some of its scales."""
    history = data.draw(st.lists(st.booleans(), min_size=3, max_size=60))
    scales = [40, *(round(log2(scale)) for scale in replay(rule, history).tolist())]
    rows, skipped, step = [Row(0, 40)], 0, 0
    for i, overflow in enumerate(history):
        step += counts_skips or not overflow
        skipped += overflow
        if overflow and shows == "overflows":
            rows.append(Row(None, scales[i + 1], scales[i], is_overflow=True))
        if step > (rows[-1].step or 0) and data.draw(st.booleans()):
            rows.append(
                Row(step, scales[i + 1], skipped=skipped if shows == "counts" else None)
            )
            skipped = 0
    # A log may begin anywhere in a run.
    starts = [i for i, row in enumerate(rows) if not row.is_overflow]
    rows = rows[data.draw(st.sampled_from(starts)) :]
    return rows if not rows[-1].is_overflow else [*rows, Row(step + 1)]


@settings(max_examples=examples(ms=4))
@given(
    st.data(), RULES, st.sampled_from(["overflows", "counts", "scales"]), st.booleans()
)
def test_true_rule_has_no_break(
    data: st.DataObject, rule: Rule, shows: str, counts_skips: bool
) -> None:
    rows = log_of(data, rule, shows, counts_skips=counts_skips)
    assert follow(rule, rows, counts_skips=counts_skips).breaks == []


def run_at(repository: str, path: str) -> Run:
    """Return a run of the corpus."""
    return next(
        run
        for run in load()
        if run["repository"] == repository and run["path"].endswith(path)
    )


OPT = run_at("LambdaLabsML/DeepSpeedExamples", "opt-1.3b-globalBatchSize128.log")


def breaks(run: Run, **wrong: int) -> int:
    rule = rule_of(run)
    assert rule is not None
    rows = list(unpacked(run["rows"], 5000))
    return len(follow(rule.replace(**wrong), rows, counts_skips=True).breaks)


@pytest.mark.parametrize(
    "wrong", [{"growth_interval": 90}, {"growth_interval": 110}, {"hysteresis": 3}]
)
def test_wrong_rule_has_breaks(wrong: dict[str, int]) -> None:
    assert breaks(OPT) == 0
    assert breaks(OPT, **wrong) > 0


def test_changed_scale_is_a_break() -> None:
    rows = [list(row) for row in OPT["rows"]]
    at = [i for i, row in enumerate(rows) if len(row) == 3][9]
    rows[at][2] -= 1
    assert breaks({**OPT, "rows": rows}) > 0


def test_early_growth_is_a_break() -> None:
    rows = [Row(0, 16), Row(5, 15, skipped=1), Row(10, 16), Row(20, 16)]
    followed = follow(Rule(growth_interval=10), rows, counts_skips=True)
    assert followed.breaks == [(10, "grew early")]


def test_packed_rows_are_unpacked() -> None:
    packed = [[2, 4, 3, 3], [9, 4, 5], [None, 5, 0, 1, 2]]
    assert list(unpacked(packed, 7)) == [
        Row(2, 4), Row(5, 4), Row(8, 4),
        Row(9), Row(9, 5, 4, is_overflow=True), Row(10),
        Row(None, 5, skipped=2),
    ]  # fmt: skip
    assert list(unpacked(packed[:1], 5)) == [Row(2, 4), Row(5, 4)]


def test_corpus_has_numbers_alone() -> None:
    texts = {"repository", "commit", "path", "sha256", "program", "model"}
    for run in load():
        numbers = [value for name, value in run.items() if name not in texts]
        assert '"' not in str(numbers)
        assert "'" not in str(numbers)


SHEET = (ROOT / "experiments" / "inputs" / "cuda_runs.md").read_text(encoding="utf-8")


def test_counts_in_data_sheet_match_data():
    parts = []
    for held_out in (False, True):
        rows = cuda_runs(results.load("cuda_runs"), held_out=held_out)
        compared = [row for row in rows if "breaks" in row]
        gpus = [row["gpus"] for row in rows if row["gpus"]]
        parts.append(
            [
                len(rows),
                len({row["repository"] for row in rows}),
                sum(row["printed"] for row in rows),
                len(gpus),
                f"{min(gpus)} to {max(gpus):,}",
                len(compared),
                sum(not row["breaks"] for row in compared),
                sum(not row["control"] for row in compared),
                sum(row["moves"] for row in compared),
                sum(len(row["breaks"]) for row in compared),
                sum(row["control"] for row in compared),
            ]
        )
    for cells in zip(*parts, strict=True):
        shown = [cell if isinstance(cell, str) else f"{cell:,}" for cell in cells]
        assert f"| {' | '.join(shown)} |" in SHEET


def test_programs_in_data_sheet_match_data():
    by_program = defaultdict(list)
    for row in cuda_runs(results.load("cuda_runs")):
        by_program[row["program"]].append(row)
    for program, rows in by_program.items():
        repositories = len({row["repository"] for row in rows})
        settled = (
            f"2^{median(row['settled'] for row in rows):.3g}"
            if program != "other"
            else "-"
        )
        assert f"| `{program}` | {len(rows)} | {repositories} | {settled} |" in SHEET


def test_sizes_in_data_sheet_match_data():
    by_size = defaultdict(list)
    for row in cuda_runs(results.load("cuda_runs")):
        if named := re.fullmatch(r".*?([\d.]+)(m|b)", row["model"] or ""):
            billions = float(named[1]) * {"m": 1e-3, "b": 1.0}[named[2]]
            by_size[billions].append(row)
    assert f"for the {sum(map(len, by_size.values()))} runs" in SHEET
    for billions, rows in by_size.items():
        settled = [row["settled"] for row in rows]
        repositories = len({row["repository"] for row in rows})
        assert f"| {billions:g} | {len(rows)} | {repositories} |" in SHEET
        assert (
            f"2^{min(settled):g} to 2^{max(settled):g} | 2^{median(settled):g} |"
            in SHEET
        )


def test_shown_logs_have_all_places_that_refute_control():
    for record in results.load("cuda_runs").records:
        for shown in record["shown"]:
            row = record["runs"][shown["run"]]
            assert len(shown["forbidden"]) in (0, row.get("control"))
            last, _ = shown["points"][-1]
            # The row after a last overflow shows no scale of its own.
            assert all(0 < step <= last + 1 for step in shown["forbidden"])


def test_defaults_break_nothing_where_they_are_the_settings():
    for row in cuda_runs(results.load("cuda_runs")):
        if row["program"] == "swin":
            assert row["defaults"] == len(row["breaks"])
