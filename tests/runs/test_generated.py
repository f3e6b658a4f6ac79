"""Generated runs, whose every number is known: what is proved of a log is true of its run."""

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim.runs import explain
from ampsim.runs.explain_log import Explanation
from ampsim.runs.findings.finding import Finding
from ampsim.runs.read.history import NothingReadError
from tests.examples import examples
from tests.runs.generated_runs import ENDINGS, PRINTERS, SICK, Log, logs

HIDDEN = {"thrash", "scale-0"}
"""Endings that lines every few steps hide: a growth interval of 1 to 3 steps, and a scale that is not printed."""


def diagnosis(lines: list[str]) -> Explanation | None:
    """Return the diagnosis of lines; None if no run is in them."""
    try:
        return explain(lines)
    except NothingReadError:
        return None


def is_true(log: Log, finding: Finding) -> bool:
    """Return whether a proved finding is true of the steps that its lines are about."""
    spans = [
        log.lines[line - 1][1:] for line in finding.lines if line <= len(log.lines)
    ]
    steps = [log.run.steps[first : last + 1] for first, last in spans]
    if finding.id in ("loss-not-finite", "loss-never-finite"):
        return all(any(step.loss != step.loss for step in span) for span in steps)
    if finding.id == "never-stepped":
        return all(step.skipped for step in log.run.steps[log.first + 1 : log.last + 1])
    return True


@settings(max_examples=examples(ms=3))
@given(logs())
def test_proved_problems_are_true(log: Log) -> None:
    found = diagnosis(log.text)
    for finding in found.problems if found else ():
        assert log.run.ending in SICK, finding
        assert finding.level == "likely" or is_true(log, finding), finding


@settings(max_examples=examples(ms=3))
@given(logs(sorted(SICK - HIDDEN)))
@example(Log("collapsed", "videomae", 61, 14, 1, 1, 0, 1, 0, "", 0, False, 0, 0, 0, False, False, False))  # fmt: skip
@example(Log("collapsed", "videomae", 61, 14, 1, 1, 0, 1, 0, "", 0, False, 0, 0, 0, True, False, False))  # fmt: skip
def test_unhealthy_runs_are_never_cleared(log: Log) -> None:
    found = diagnosis(log.text)
    is_long = log.last - max(log.run.begin, log.first) > 45
    assert not (is_long and found and found.verdict == "no problem found")


def sample(number: int, ending: str) -> list[Log]:
    """Return logs of one ending, the same ones with each version of Hypothesis and in each profile."""
    random = Random(ending)  # noqa: S311
    return [
        Log(
            ending,
            form=random.choice(sorted(PRINTERS)),
            count=random.randint(60, 300),
            begin=random.randint(0, 150),
            seed=random.randrange(10**6),
            every=random.choice([1, 2, 5, 10]),
            drop=random.choice([0, 0, 0, 1, 3, 20]),
            thin=random.choice([1, 1, 1, 2, 3, 7]),
            torn=random.random() < 0.5,
        )
        for _ in range(number)
    ]


LEAST = {"thrash": 0.2, "static": 0.3, "scale-0": 0.4}
"""Ending -> share of long logs whose verdict is that of their run; a half for the others."""


@pytest.mark.parametrize("ending", ENDINGS)
def test_most_runs_are_recognized(ending: str) -> None:
    right = "problem" if ending in SICK else "no problem found"
    verdicts = [
        found.verdict
        for log in sample(150, ending)
        if (found := diagnosis(log.text))
        and log.last - max(log.run.begin, log.first) > 45
    ]
    assert verdicts.count(right) >= LEAST.get(ending, 0.5) * len(verdicts), verdicts


CHANGES = {
    "a suffix": lambda lines: lines[len(lines) // 3 :],
    "every second line": lambda lines: lines[::2],
    "every fifth line": lambda lines: lines[4::5],
    "two ranks": lambda lines: [
        f"[rank{rank}]: {line}" for line in lines for rank in (0, 1)
    ],
}


@pytest.mark.parametrize("change", CHANGES)
@settings(max_examples=examples(ms=10))
@given(data=st.data())
def test_changed_healthy_log_is_no_problem(change: str, data: st.DataObject) -> None:
    log = data.draw(logs(["healthy"], whole=True))
    found = diagnosis(CHANGES[change]([f"{text}\n" for text, _, _ in log.lines]))
    assert not (found and found.problems)
