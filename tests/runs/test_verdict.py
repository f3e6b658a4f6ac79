"""What is enough evidence for "no problem found", and what is not."""

import math

import numpy as np
import pytest

from ampsim.runs import explain

CLEAR, UNSURE = "no problem found", "too little to tell"
NOISE = np.random.default_rng(0).normal(0, 0.01, 60)


def losses(values: list[float], name: str = "loss") -> list[str]:
    return [f"step {10 * row}: {name} {value:.4f}" for row, value in enumerate(values)]


ALONE = {
    "halved": ([2.0, 1.5, 1.0], CLEAR),
    "lower at each record": ([2.0, 1.96, 1.9, 1.85, 1.8], CLEAR),
    "early above late": ([2.0, 1.98, 1.8, 1.82, 1.79, 1.81, 1.78, 1.8], CLEAR),
    "soon low": ([2.0, 1.2, *(1.0 + NOISE)], CLEAR),
    "flat": ((2.0 + NOISE).tolist(), UNSURE),
    "two records": ([2.0, 1.0], UNSURE),
    "ends at zero": ([2.0, 1.0, 0.5, 0.0], UNSURE),
    "ends higher": ([2.0, 1.0, 0.9, 2.8, 2.9, 2.9], UNSURE),
}


@pytest.mark.parametrize("case", ALONE)
def test_loss_alone_must_fall_clearly(case: str) -> None:
    values, expected = ALONE[case]
    assert explain(losses(values)).verdict == expected


def test_evaluation_alone_shows_training() -> None:
    assert explain(losses([2.0, 1.5, 1.2, 1.0], "eval_loss")).verdict == CLEAR
    assert explain(losses([2.0, 2.0, 2.0, 2.0], "eval_loss")).verdict == UNSURE


def test_epochs_that_go_on_are_one_run() -> None:
    rows = [(epoch, 10 * step) for epoch in range(10) for step in range(5)]
    lines = [f"epoch {e} step {s}: loss {3.0 - e / 5 - s / 1000:.3f}" for e, s in rows]
    for printed in (lines, [line.partition(" step ")[2] for line in lines]):
        named = [
            line if line.startswith("epoch") else f"step {line}" for line in printed
        ]
        assert explain(named).headline.endswith("over 50 records.")
        assert explain(named).verdict == CLEAR


def test_loss_that_leaps_begins_a_run() -> None:
    first = losses(np.linspace(3, 1, 40).tolist())
    again = losses(np.linspace(3, 2, 40).tolist())
    assert "from 3 to 2 over 40 records" in explain([*first, *again]).headline


def test_short_restart_keeps_the_verdict() -> None:
    first = losses(np.linspace(3, 1, 40).tolist())
    found = explain([*first, *losses([3.0, 2.9])])
    assert found.verdict == CLEAR
    assert found.headline.startswith("In run 1 of 2")
    assert explain([*first, *losses([30.0, 29.0])]).verdict == UNSURE
    assert explain([*first, *losses([math.nan, math.nan])]).verdict == "problem"


def test_first_line_again_begins_a_run() -> None:
    first = [f"loss {value}" for value in np.linspace(3, 1, 40)]
    again = [f"loss {value}" for value in np.linspace(3, 2, 40)]
    starts = "Training starts"
    found = explain([starts, *first, starts, *again])
    assert "from 3 to 2 over 40 records" in found.headline


def test_earlier_divergence_is_a_problem() -> None:
    rose = losses([*np.linspace(3, 1, 20), *np.geomspace(2, 90, 20)])
    found = explain([*rose, *losses(np.linspace(3, 1, 30).tolist())])
    assert found.problems[0].message.startswith("In run 1 of 2")


@pytest.mark.parametrize(("every", "expected"), [(4, CLEAR), (1, UNSURE)])
def test_frequent_skips_are_not_cleared(every: int, expected: str) -> None:
    lines = losses(np.linspace(3, 1, 40).tolist())  # 10 steps apart
    for at in range(36, 0, -every):
        lines.insert(at, "Found overflow. Skip step")
    assert explain(lines).verdict == expected


def test_worst_run_decides() -> None:
    def run(*values: float) -> list[str]:
        return [f"Epoch {row}/9: Loss={value}" for row, value in enumerate(values, 1)]

    good, lost = run(*np.linspace(8, 4, 9)), run(*[math.nan] * 9)
    runs = [good, lost, good, good, good, good, good, good]
    log = [line for at, lines in enumerate(runs) for line in (f"== {at} ==", *lines)]
    found = explain(log)
    assert found.verdict == "problem"
    assert "In run 2 of 8 in this log (lines 12 to 20)" in found.headline


ALARMS = ["Epoch 4: NaN batches start appearing", "The model COLLAPSED", "It diverged!"]
CALM = [
    "No NaN was found in the data",
    "Training stops if the loss is NaN",
    "score improved from -inf to 0.5",
    "# Avoid Inf/NaN error",
]


@pytest.mark.parametrize("line", [*ALARMS, *CALM])
def test_unexplained_trouble_is_not_cleared(line: str) -> None:
    found = explain([*losses([2.0, 1.5, 1.0, 0.9]), line])
    assert found.verdict == (UNSURE if line in ALARMS else CLEAR)
    assert (line in found.headline) == (line in ALARMS)


def test_runaway_negative_loss_diverged() -> None:
    values = [-(1.2**row) for row in range(100)]
    assert explain(losses(values)).problems[0].id == "loss-diverged"
    assert not explain(losses([2.0 - row / 10 for row in range(100)])).problems


def test_impossible_count_proves_nothing() -> None:
    counts = [(10, 1), (30, 2), (40, 2**42)]
    lines = [
        f"iteration {step} | loss: 2.0 | skipped iterations: {count} |"
        for step, count in counts
    ]
    assert not explain(lines).problems
