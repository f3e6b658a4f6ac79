"""Ranks that train with ours are one machine; with torch's they part, or lose their parameters, where it is known."""

import math

import pytest

from ampsim import Rule
from ampsim.records import Record
from figures import results
from tests.experiments.runs import assert_replayed, scales

RUN = results.load("ranks_training")
CONFIG = RUN.config
SEEDS = [{(run["way"], run["scaler"]): run["ranks"] for run in row["runs"]} for row in RUN.records]
RULE = Rule(2.0 ** CONFIG["init_log2"], growth_interval=CONFIG["growth_interval"])
ALONE, BOTH = {CONFIG["on_rank_0"], CONFIG["on_rank_1"]}, CONFIG["on_both"]
each_seed = pytest.mark.parametrize("runs", SEEDS, ids=RUN.seeds)


def verdict(rank: Record) -> list[object]:
    return [rank["scale_changes"], rank["skipped"], rank["not_finite"]]


@each_seed
def test_with_ours_both_ranks_are_the_reference_machine_and_skip_what_any_found(
    runs: dict[tuple[str, str], Record],
) -> None:
    for (_, scaler), (first, second) in runs.items():
        if scaler == "ours":
            assert verdict(first) == verdict(second)
            assert {*ALONE, BOTH} <= {*first["skipped"]}
            assert not first["not_finite"]
            assert_replayed({**first, "found_inf": first["skipped"]}, RULE)


@each_seed
def test_torchs_steps_into_inf_where_both_ranks_overflow_and_a_fused_step_comes_after_unscale(
    runs: dict[tuple[str, str], Record],
) -> None:
    for rank in runs["unscale_, fused", "torch"]:
        (first, *_) = rank["not_finite"]
        assert first <= BOTH
        assert rank["not_finite"] == [*range(first, CONFIG["steps"])]
        assert {*rank["skipped"]} >= ALONE  # one flag is exactly 1
        assert max(rank["skipped"]) < first  # a NaN is found on both, and stepped on
        assert scales(rank)[first:] == [scales(rank)[first] / 2**k for k in range(CONFIG["steps"] - first)]


@each_seed
def test_torchs_does_not_ask_the_other_rank_in_a_fused_step_alone(runs: dict[tuple[str, str], Record]) -> None:
    first, second = runs["fused", "torch"]
    assert CONFIG["on_rank_0"] in first["skipped"]
    assert CONFIG["on_rank_0"] not in second["skipped"]
    assert scales(first)[CONFIG["on_rank_0"] + 1] == scales(second)[CONFIG["on_rank_0"] + 1] / 2
    assert all(math.isnan(rank["loss"][-1]) for rank in (first, second))  # a mean of gradients of two scales


@each_seed
@pytest.mark.parametrize("way", ["unscale_, not fused", "FSDP2"])
def test_where_torchs_is_right_ours_gives_the_same_run_to_the_last_digit(
    runs: dict[tuple[str, str], Record], way: str
) -> None:
    assert runs[way, "torch"] == runs[way, "ours"]
