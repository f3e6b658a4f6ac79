"""The tables of the gallery say what the records say."""

from figures import results, tables


def test_loops_count_checks_that_ran() -> None:
    verdicts = {
        "resume_is_exact": {"outcome": "holds", "known": None},
        "step_changes_parameters": {
            "outcome": "broken",
            "known": "see https://example.com",
        },
        "micro_batches_equal_one_batch": {"outcome": "broken", "known": "a reason"},
        "ranks_equal_one_process": {"outcome": "not asked", "known": None},
    }
    rows = (
        {"arm": "own", "version": None, "checks": verdicts},
        {"arm": "no loop"},
    )
    table = tables.loops(results.Result("loops", results.CPU, {}, rows))
    failed = "step changes parameters (reported); micro batches equal one batch (no report found)"
    assert table.rows == (("own", "", "1 of 3", failed),)
    assert table.caption.startswith("1 of 1 training loops")


def test_ranks_name_the_worst_outcomes() -> None:
    def cell(outcome: str) -> dict[str, str]:
        return {"outcome": outcome}

    assert tables.outcome([cell("right"), cell("right")]) == "ok"
    assert (
        tables.outcome([cell("raised"), cell("right"), cell("raised infinite")])
        == "raises, inf"
    )
    assert tables.outcome([cell("parted")]) == "diverge"
    assert tables.outcome([]) == "–"


def test_ranks_table_covers_wrong_cells() -> None:
    run = results.load("ranks_cells")
    wrong = {
        c["cut"] for c in tables.rank_cells(run, "torch") if c["outcome"] != "right"
    }
    shown = {row[0] for row in tables.ranks_cells(run).rows if {*row[1:]} - {"ok", "–"}}
    assert shown == wrong
