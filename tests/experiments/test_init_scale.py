"""What a wrong initial scale costs: the closed forms, a fresh run, and what the committed one shows."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim import Rule, replay
from experiments import init_scale
from experiments.init_scale import Start
from experiments.theorems.simulate import follow
from experiments.training.loop import Log
from experiments.training.series import flagged
from figures import results
from tests.examples import examples

RUN = results.load("init_scale")
PROVENANCE, ROWS = RUN.provenance, RUN.records
CONFIG = PROVENANCE["config"]


def rows(task: str, start: int, interval: int = CONFIG["interval"]) -> list[dict[str, Any]]:
    return [row for row in ROWS if row["arm"] == f"{task} 2^{start} G={interval}"]


@settings(max_examples=examples(ms=1.5))
@given(start=st.integers(0, 24), ceiling=st.integers(2, 20), interval=st.integers(1, 6), seek_every=st.integers(1, 5))
def test_under_a_ceiling_that_stands_still_the_closed_forms_are_exact(
    start: int, ceiling: int, interval: int, seek_every: int
) -> None:
    steps = 24 * interval + 30
    found, bits = follow(Rule(2.0**start, growth_interval=interval), [2.0**ceiling] * steps)
    log = Log(scales=[2.0**x for x in bits], found_inf=flagged(found.tolist()))
    ceilings = [float(ceiling)] * math.ceil(steps / seek_every)  # no more and no fewer than are sought
    measured = init_scale.costs(Start("sigmoid", start, interval), log, ceilings, seek_every)
    predicted = measured.pop("predicted")
    assert measured == predicted
    assert predicted["lost_steps"] == max(0, start - ceiling)
    low = max(0, ceiling - start)
    assert (predicted["climb_steps"], predicted["climb_bits"]) == (interval * low, interval * low * (low + 1) / 2)


def test_a_climb_that_the_run_does_not_end_has_no_length() -> None:
    log = Log(scales=[1.0] * 5)
    assert init_scale.costs(Start("sigmoid", 0, 20), log, [19.0], 10) | {"predicted": None} == {
        "lost_steps": 0, "climb_steps": None, "climb_bits": None, "predicted": None,
    }  # fmt: skip
    assert init_scale.predict(Start("sigmoid", 0, 20), -math.inf) is None


def test_each_step_is_held_against_the_ceiling_sought_last_and_not_before_the_start_is_over() -> None:
    log = Log(scales=[2.0**k for k in (7, 6, 5, 5, 5, 5)], found_inf=[0, 1])
    measured = init_scale.costs(Start("sigmoid", 7, 20), log, [5.0, 7.0, 5.0], 2)
    assert (measured["lost_steps"], measured["climb_steps"], measured["climb_bits"]) == (2, 2, 4.0)


def test_the_plateau_is_left_with_the_first_block_below_it() -> None:
    log = Log(losses=[3.0, 3.0, 3.0, 1.5, 2.0, 1.0, 3.0])
    row = init_scale.losses(log, 2, plateau=2.3)
    assert (row["block_loss"], row["left_plateau"]) == ([3.0, 2.25, 1.5, 3.0], 2)
    assert init_scale.losses(log, 2, plateau=1.0)["left_plateau"] is None


def test_an_overflow_below_the_ceiling_last_found_ends_the_climb() -> None:
    log = Log(scales=[4.0] * 4 + [8.0] + [4.0], found_inf=[4])
    measured = init_scale.costs(Start("sigmoid", 2, 4), log, [5.0], 10)
    assert (measured["lost_steps"], measured["climb_steps"], measured["climb_bits"]) == (0, 4, 12.0)


@pytest.mark.parametrize("arm", [Start("sigmoid", 2, 3), Start("residual", 30, 3)])
def test_a_fresh_runs_scales_are_a_replay_of_its_overflows(arm: Start) -> None:
    config = dataclasses.replace(init_scale.SMOKE, steps=20, batch_sigmoid=8, batch_residual=4)
    row = init_scale.run(config, arm, 0, "cpu", lambda step: None)
    found = [step in row["found_inf"] for step in range(20)]
    scales = [2.0**arm.init_log2, *replay(Rule(2.0**arm.init_log2, growth_interval=3), found)][:20]
    assert row["scale_changes"] == [[i, s] for i, s in enumerate(scales) if i == 0 or s != scales[i - 1]]
    assert row["lost_steps"] == (0 if arm.init_log2 == 2 else found.index(False))
    assert len(row["block_loss"]) == len(row["zero"]) == len(row["ceilings"]) == 5


def test_a_start_too_high_loses_a_step_a_bit_and_the_first_batch_tells_how_many() -> None:
    high = [row for row in ROWS if row["predicted"]["lost_steps"] > 0]
    assert len(high) >= 3 * 4
    assert max(abs(row["lost_steps"] - row["predicted"]["lost_steps"]) for row in high) <= 2
    assert {row["lost_steps"] for row in ROWS if row["predicted"]["lost_steps"] == 0} == {0}


def test_a_start_too_low_climbs_as_long_as_foretold() -> None:
    low = [r for r in ROWS if r["predicted"]["climb_steps"] >= 100 and r["climb_steps"] is not None]
    assert len(low) >= 3 * 4
    for row in low:
        assert row["climb_steps"] == pytest.approx(row["predicted"]["climb_steps"], rel=0.3)
        assert row["climb_bits"] == pytest.approx(row["predicted"]["climb_bits"], rel=0.3)


def test_flushing_delays_the_sigmoid_network_and_not_the_residual_one() -> None:
    def left(units: list[dict[str, Any]]) -> float:
        return float(np.median([math.inf if r["left_plateau"] is None else r["left_plateau"] for r in units]))

    middle = left(rows("sigmoid", 8))
    assert middle + 20 < left(rows("sigmoid", 0)) < left(rows("sigmoid", 0, 50)) < left(rows("sigmoid", 0, 200))
    assert abs(left(rows("residual", 0)) - left(rows("residual", 16))) <= 20
    assert all(row["zero"][0] > 0.2 for row in rows("sigmoid", 0))
    assert all(row["zero"][0] < 0.06 for row in rows("sigmoid", 16))
