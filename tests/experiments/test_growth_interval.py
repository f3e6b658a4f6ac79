"""The growth interval: T1 to the last skip, T3 and T7 on what the committed runs show."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim import Rule, records, replay
from ampsim.core import theory
from experiments import growth_interval
from experiments.growth_interval import GrowthRule
from experiments.theorems.simulate import follow
from experiments.training.loop import Log
from figures import growth_interval as figure
from figures import results
from tests.examples import examples

RUN = results.load("growth_interval")
PROVENANCE, ROWS = RUN.provenance, RUN.records
INTERVALS = PROVENANCE["config"]["intervals"]


def mean(arm: str, key: str) -> float:
    values = [row["skips"] / row["steps"] if key == "rate" else row[key] for row in ROWS if row["arm"] == arm]
    return float(np.mean([value[0] if isinstance(value, list) else value for value in values]))


@settings(max_examples=examples(ms=1.5))
@given(interval=st.integers(1, 3000), a=st.sampled_from([0.25, 0.5, 1, 3]), b=st.sampled_from([0.25, 0.5, 1, 3]))
def test_an_arms_rule_grows_and_backs_off_by_its_bits(interval: int, a: float, b: float) -> None:
    arm = GrowthRule(interval, a, b)
    assert [*growth_interval.arms(growth_interval.Config(intervals=(), split=((interval, a, b),))).values()] == [arm]
    assert theory.bits(arm.rule) == pytest.approx((a, b))
    assert arm.rule.growth_interval == interval


@settings(max_examples=examples(ms=1.5))
@given(
    ceilings=st.lists(st.integers(0, 12), min_size=1, max_size=120), interval=st.integers(1, 6),
    bits=st.sampled_from([(1, 1), (1, 3), (2, 1)]),
)  # fmt: skip
def test_t1_counts_the_skips_between_two_overflows_exactly(
    ceilings: Sequence[int], interval: int, bits: tuple[int, int]
) -> None:
    rule = dataclasses.replace(GrowthRule(interval, *bits).rule, init_scale=2.0**8)
    found, scales = follow(rule, [2.0**k for k in ceilings])
    made = growth_interval.budget(rule, scales.tolist(), found.tolist())
    assert made["skips"] == pytest.approx(made["exact"], abs=1e-5)
    assert made["skips"] <= made["bound"] + 1e-5
    assert made["skips"] == max(0, int(found.sum()) - 1)


def test_the_committed_skips_are_what_t1_says_exactly_and_within_its_bound() -> None:
    for row in ROWS:
        assert row["budget"]["skips"] == pytest.approx(row["budget"]["exact"], abs=1e-3)
        assert row["budget"]["skips"] <= row["budget"]["bound"] + 1e-3
        assert row["skips"] >= row["budget"]["skips"]


def test_in_equilibrium_t3_foretells_the_skips_from_the_runs_own_ceilings() -> None:
    for interval in (5, 10, 20, 50):
        foretold, _ = figure.t3(ROWS, interval)
        bound = theory.skip_rate(Rule(growth_interval=interval))
        steps = sum(row["steps"] for row in ROWS if row["arm"] == f"G={interval}")
        counting = 1 / math.sqrt(foretold * steps)  # a standard error of so few skips as there are at a long interval
        assert mean(f"G={interval}", "rate") == pytest.approx(foretold, rel=max(0.1, counting))
        assert foretold < bound


def test_a_long_interval_skips_less_and_leaves_more_unused() -> None:
    arms = [f"G={interval}" for interval in INTERVALS[:5]]
    rates, unused = ([mean(arm, key) for arm in arms] for key in ("rate", "headroom"))
    assert rates == sorted(rates, reverse=True)
    assert unused[0] + 1 < unused[-1]


def test_a_ceiling_that_moves_costs_more_than_t7s_product_and_a_finer_step_moves_along_it() -> None:
    for arm, made in growth_interval.arms(growth_interval.Config()).items():
        assert mean(arm, "rate") * mean(arm, "headroom") > theory.trade_off(made.rule)
    fine, coarse = "G=5 a=0.25 b=0.25", "G=20 a=1 b=3"  # the same speed
    assert mean(fine, "rate") > 4 * mean(coarse, "rate")
    assert mean(fine, "headroom") + 1 < mean(coarse, "headroom")


@pytest.mark.parametrize("arm", [GrowthRule(2), GrowthRule(3, 0.5, 1.0)])
def test_a_fresh_runs_scales_are_a_replay_of_its_overflows(arm: GrowthRule) -> None:
    config = dataclasses.replace(growth_interval.SMOKE, steps=30, batch_cpu=8)
    row = growth_interval.run(config, arm, 0, "cpu", lambda step: None)
    found = [step in row["found_inf"] for step in range(30)]
    rule = dataclasses.replace(arm.rule, init_scale=2.0**config.start_log2)
    scales = [rule.init_scale, *replay(rule, found)][:30]
    assert row["scale_changes"] == [[i, s] for i, s in enumerate(scales) if i == 0 or s != scales[i - 1]]
    assert row["skips"] == sum(found[config.warm_up :]) > 0
    sampled = range(config.warm_up, 30, config.sample_every)
    assert sum(count for _, count in row["ceilings"]) == len(sampled)
    assert row["mean_log2_scale"] == pytest.approx(np.mean(np.log2(scales[config.warm_up :])), rel=1e-5)


def test_a_run_that_only_saw_bad_steps_has_a_record() -> None:
    log = Log(losses=[math.nan] * 3, scales=[4.0, 2.0, 1.0], found_inf=[0, 1, 2])
    row = growth_interval.columns(Rule(), log, 1, [-math.inf], [])
    assert (row["headroom"], row["ceiling"], row["ceilings"], row["skips"]) == (None, None, [], 2)
    again = records.decode(records.encode(row))
    assert again | {"final_loss": None} == row | {"final_loss": None}
    assert math.isnan(again["final_loss"])
