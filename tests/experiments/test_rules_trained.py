"""Rules that train: what is counted of them, and what the committed runs show of T1, T4 and T7."""

import math

import pytest

from ampsim import Rule
from ampsim.core.json_lines import Record
from experiments import rules_trained
from experiments.rules_trained import RULES, START, Config
from experiments.training.loop import Log
from tests.experiments import runs

MACHINES = {name: rule for name, rule in RULES.items() if isinstance(rule, Rule)}


def fresh(arm: str, **changes: int) -> Record:
    return runs.fresh(rules_trained, arm, **changes)


@pytest.mark.parametrize("name", ["G=5", "G=5 a=0.25 b=0.25", "G=20 k=2"])
def test_fresh_run_scales_replay_its_overflows(name: str) -> None:
    row = fresh(name, steps=30, batch_cpu=8)
    assert row["found_inf"]
    runs.assert_replayed(row, MACHINES[name], 30)


def test_headroom_policy_follows_largest_gradient() -> None:
    row = fresh("headroom 3 bits", steps=12, batch_cpu=4)
    scales = runs.scales(row, 12)
    assert (
        scales[0] == START > scales[-1]
    )  # it came down to three bits below the threshold
    assert row["found_inf"] == list(
        range(len(row["found_inf"]))
    )  # only on the way down
    assert row["headroom"][0] > 2
    assert fresh("fp32")["headroom"] is None


def test_columns_exclude_warm_up() -> None:
    config = Config(steps=6, warm_up=2, block=2, plateau=2.2)
    log = Log(
        losses=[3.0, 3.0, 3.0, 1.0, 2.0, 2.0],
        scales=[8.0, 4.0, 2.0, 2.0, 1.0, 1.0],
        found_inf=[0, 1, 3],
    )
    row = rules_trained.columns(config, log, [1.5, 2.0], [(0.5, 0.1), (1.5, 0.3)])
    assert (
        row["skip_rate"],
        row["lost_steps"],
        row["left_plateau"],
        row["first_ceiling"],
    ) == (
        0.25,
        2,
        2,
        1.5,
    )
    assert (row["headroom"], row["zero"]) == ([1.0, 0.5], [0.2, 0.1])
    bad = Log(
        losses=[math.nan] * 6,
        scales=[2.0**-k for k in range(6)],
        found_inf=list(range(6)),
    )
    row = rules_trained.columns(config, bad, [-math.inf], [])
    assert (row["headroom"], row["zero"], row["skip_rate"], row["left_plateau"]) == (
        None,
        None,
        1.0,
        None,
    )
