"""Rules that train: what is counted of them, and what the committed runs show of T1, T4 and T7."""

import math

import numpy as np
import pytest

from ampsim import Rule
from ampsim.core import theory
from ampsim.records import Record
from experiments import rules_trained
from experiments.rules_trained import RULES, Config
from experiments.training.loop import Log
from experiments.training.policies import START
from figures import results
from tests.experiments import runs

RUN = results.load("rules_trained")
MACHINES = {name: rule for name, rule in RULES.items() if isinstance(rule, Rule)}


def fresh(arm: str, **changes: int) -> Record:
    return runs.fresh(rules_trained, arm, **changes)


@pytest.mark.parametrize("name", ["G=5", "G=5 a=0.25 b=0.25", "G=20 k=2"])
def test_a_fresh_runs_scales_are_a_replay_of_its_overflows(name: str) -> None:
    row = fresh(name, steps=30, batch_cpu=8)
    assert row["found_inf"]
    runs.assert_replayed(row, MACHINES[name], 30)


def test_a_policy_that_sees_the_largest_gradient_sets_its_scale_by_it() -> None:
    row = fresh("headroom 3 bits", steps=12, batch_cpu=4)
    scales = runs.scales(row, 12)
    assert scales[0] == START > scales[-1]  # it came down to three bits below the ceiling
    assert row["found_inf"] == list(range(len(row["found_inf"])))  # only on the way down
    assert row["headroom"][0] > 2
    assert fresh("fp32")["headroom"] is None


def test_one_overflow_pins_the_published_logmax_at_its_floor() -> None:
    for row in RUN.arm("LogMax as published"):
        assert row["found_inf"][0] < RUN.steps
        assert row["scale_changes"][-1][1] == 1.0


def test_columns_are_counted_after_the_warm_up() -> None:
    config = Config(steps=6, warm_up=2, block=2, plateau=2.2)
    log = Log(losses=[3.0, 3.0, 3.0, 1.0, 2.0, 2.0], scales=[8.0, 4.0, 2.0, 2.0, 1.0, 1.0], found_inf=[0, 1, 3])
    row = rules_trained.columns(config, log, [1.5, 2.0], [(0.5, 0.1), (1.5, 0.3)])
    assert (row["skip_rate"], row["lost_steps"], row["left_plateau"], row["first_ceiling"]) == (0.25, 2, 2, 1.5)
    assert (row["headroom"], row["zero"]) == ([1.0, 0.5], [0.2, 0.1])
    bad = Log(losses=[math.nan] * 6, scales=[2.0**-k for k in range(6)], found_inf=list(range(6)))
    row = rules_trained.columns(config, bad, [-math.inf], [])
    assert (row["headroom"], row["zero"], row["skip_rate"], row["left_plateau"]) == (None, None, 1.0, None)


def test_t1_counts_the_committed_skips_between_first_and_last_exactly() -> None:
    for name, rule in MACHINES.items():
        for row in RUN.arm(name) if not rule.delay else ():
            if len(row["found_inf"]) < 2:
                continue
            bad, bits = row["found_inf"], np.log2(runs.scales(row, RUN.steps))
            history = np.isin(np.arange(bad[0] + 1, bad[-1] + 1), bad).tolist()
            descent = bits[bad[0] + 1] - (bits[bad[-1]] - theory.bits(rule)[1])
            lost = theory.wasted(history, rule.growth_interval)
            assert sum(history) == pytest.approx(theory.skips(rule, len(history), descent, lost), abs=1e-3)
            assert sum(history) <= theory.skips(rule, len(history), descent) + 1e-3


def test_a_ceiling_that_moves_costs_more_than_t7s_product() -> None:
    for name in ("G=20", "G=10 a=0.5 b=0.5", "G=5 a=0.25 b=0.25"):
        arm = RUN.arm(name)
        assert arm.mean("skip_rate") * arm.numbers("headroom")[:, 0].mean() > theory.trade_off(MACHINES[name])


def test_a_start_too_high_loses_a_step_per_bit_and_the_first_batch_tells_how_many() -> None:
    for row in RUN.arm("G=20 from 2^32"):
        assert row["lost_steps"] == pytest.approx(32 - row["first_ceiling"], abs=2)  # batches differ
