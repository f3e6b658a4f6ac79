"""The tables of the paper add up, and say what the data says."""

import pytest

from experiments.corpus import runs as corpus
from paper import log_tables, software_tables
from paper.numbers import NUMBERS, runs
from paper.sources import load


def column(rows, at: int) -> list[float]:
    return [float(row[at]) for row in rows if row]


def test_example_log_is_refuted_at_its_end() -> None:
    *allowed, (_, _, last) = log_tables.example().rows
    assert [trackers for *_, trackers in allowed] == ["0, 1, 2", "1, 2", "0"]
    assert last.startswith("none")


def test_each_log_is_followed_or_excluded() -> None:
    excluded = sum(column(log_tables.excluded().rows, 1))
    assert excluded == NUMBERS["cuda.unfollowed"].compute()
    assert (
        excluded + NUMBERS["cuda.followed"].compute() == NUMBERS["cuda.runs"].compute()
    )


@pytest.mark.parametrize(
    "at", [1, 4, 5, 6, 8, 9, 10, 11]
)  # without repositories, programs, and medians
def test_parts_add_up_to_all_logs(at: int) -> None:
    *rows, all_logs = log_tables.followed_logs().rows
    first, second, last = (place for place, row in enumerate(rows) if row == ())
    parts = (rows[:first], rows[first:second], rows[second:last])
    assert [sum(column(part, at)) for part in parts] == [float(all_logs[at])] * 3


def test_steps_of_the_study_add_up() -> None:
    logs = column(log_tables.flow().rows, 1)
    assert sum(logs[2:5]) == logs[5] == NUMBERS["cuda.whole"].compute()
    assert logs[2] + logs[3] == NUMBERS["cuda.stated"].compute()


def test_each_consistent_log_is_in_one_range() -> None:
    rows = log_tables.growths().rows
    logs, as_many = column(rows, 1), column(rows, 2)
    assert sum(logs) == as_many[0] == NUMBERS["cuda.whole"].compute()
    assert sum(column(rows, -1)) == NUMBERS["cuda.longer"].compute()


def test_each_log_with_a_verdict_is_in_one_row() -> None:
    rows = log_tables.sight().rows
    verdicts = rows[: rows.index(())]
    total = sum(sum(map(int, row[2:])) for row in verdicts)
    assert total == NUMBERS["sight.logs"].compute()


def test_undecided_logs_have_no_verdict() -> None:
    undecided = [
        row for row in log_tables.sight().rows if row and row[1] == "undecided"
    ]
    first = [row["first"] for row in runs.judged()]
    unread = first.count("unreadable")
    assert unread == NUMBERS["sight.unread"].compute()
    total = sum(sum(map(int, row[2:])) for row in undecided)
    assert total == unread + first.count("too little to tell")


def test_interval_has_the_named_source() -> None:
    rows = runs.logs(load("cuda_runs"), runs.is_followed)
    printed = {
        (run["repository"], run["path"]) for run in corpus.load() if run["interval"]
    }
    for row in rows:
        is_printed = (row["repository"], row["path"]) in printed
        assert runs.source_of(row) in (
            ("log", "file") if is_printed else ("default", "file")
        )
    sources = [
        NUMBERS[f"cuda.interval.{name}"].compute() for name in log_tables.SOURCES
    ]
    assert sum(sources) == len(rows)


def test_bound_of_equal_interval_is_stored_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = runs.logs(load("cuda_runs"), runs.has_bound)
    longer = [runs.longer_bound(row) for row in rows]
    monkeypatch.setattr(runs, "LONGER", 1)
    stored = [row["most"] for row in rows]
    assert [runs.longer_bound(row) for row in rows] == pytest.approx(stored)
    assert longer != pytest.approx(stored)


@pytest.mark.parametrize(
    ("known", "shown"),
    [
        ("", "not searched"),
        ("a cause; no report was found", "none found"),
        ("a cause: https://github.com/a/b-c/issues/12", r"b-c~\#12"),
        (
            "a cause: https://github.com/a/b/pull/3; no report was found",
            r"b~\#3, in part",
        ),
        (
            "https://github.com/a/b/issues/1, https://github.com/a/b/issues/2",
            r"b~\#1, b~\#2",
        ),
    ],
)
def test_public_threads_are_named(known: str, shown: str) -> None:
    assert software_tables.published(known) == shown


def test_scale_is_shown_as_power() -> None:
    shown = [
        software_tables.in_bits(scale) for scale in (1.0, 2.0**24, None, 2.0**-126)
    ]
    assert shown == ["1", "$2^(24)$", "–", "–"]
