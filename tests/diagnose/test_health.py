"""Runs that an expert calls healthy: a growth, counted updates, a scale that stands where it once was lower."""

import math

import pytest

from ampsim.diagnose.explain import explain
from ampsim.diagnose.readers.text import read_text

LINE = "step: {}, loss: {}, loss_scale: {}\n"
UPDATE = '2026-01-01 | INFO | train_inner | {{"loss": "{}", "num_updates": "{}", "loss_scale": "{}"}}\n'


def verdict(lines: list[str]) -> str:
    return explain(read_text("-", lines)).verdict


def scales(*values: float, every: int = 20) -> list[str]:
    return [LINE.format(every * at, 3.0, value) for at, value in enumerate(values)]


def test_a_scale_that_has_grown_is_that_of_a_run_that_takes_steps() -> None:
    assert verdict(scales(*[1024.0] * 9, 2048.0)) == "healthy"
    assert verdict(scales(512.0, *[1024.0] * 9)) == "healthy"


def test_a_scale_that_stands_and_was_never_lower_proves_nothing() -> None:
    assert verdict(scales(*[1024.0] * 9)) == "cannot tell"
    assert verdict(scales(2048.0, *[1024.0] * 9)) == "cannot tell"


@pytest.mark.parametrize("after", [[512.0], [1024.0, 512.0, 256.0], [1024.0, 512.0, 512.0, 512.0]])
def test_a_growth_is_no_health_where_the_scale_falls_below_it_again(after: list[float]) -> None:
    assert verdict(scales(*[1024.0] * 6, 2048.0, *after)) != "healthy"


def test_a_scale_that_stands_from_step_to_step_may_be_a_hysteresis() -> None:
    assert verdict(scales(512.0, *[1024.0] * 9, every=1)) == "cannot tell"


def test_updates_that_a_program_counts_are_steps() -> None:
    assert verdict([UPDATE.format(2.5, 113000, 16), UPDATE.format(2.4, 113049, 16)]) == "healthy"
    assert verdict([UPDATE.format(2.5, 113000, 16), UPDATE.format(2.4, 113001, 16)]) == "cannot tell"


def test_a_norm_of_0_beside_a_loss_that_never_moves_is_sick_and_beside_one_that_does_is_a_note() -> None:
    line = "iteration {}/ 99 | lm loss: {:.6E} | grad norm: {:.3f} | number of skipped iterations: 0 |\n"
    first = line.format(1, 10.4, math.nan)
    stands = explain(read_text("-", [first, *(line.format(at, 10.40111, 0.0) for at in range(2, 16))]))
    assert [each.kind for each in stands.wrong] == ["loss stands"]
    assert "at least 14 records, steps 2 to 15, and the loss as 10.40111 on each" in stands.wrong[0].what
    assert "some norms" in [each.kind for each in stands.statements]
    assert verdict([first, *(line.format(at, 10.4 - at / 99, 0.0) for at in range(2, 16))]) == "cannot tell"
    assert verdict([first, *(line.format(at, 10.4, 0.0) for at in range(2, 16))]) == "cannot tell"  # of few digits
