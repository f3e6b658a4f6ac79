"""Whole public logs are repeated by the rule that was set, and refute rules that were not."""

from math import log2
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim import Rule, dialects, replay
from ampsim.core.recorded_runs import with_current_names
from experiments import whole_logs
from experiments.whole_logs import Block, Event, Follower
from tests.examples import examples

SFT = whole_logs.LOGS["SFT, OPT-1.3B"]


def refuted(log: dict[str, Any], rule: Rule) -> int | None:
    """Return the last step of the first block that a rule cannot explain."""
    _, block = Follower(rule, growths_printed=log["growths_printed"]).follow(
        list(whole_logs.blocks(log, 10_000))
    )
    return block and block.last


@pytest.mark.parametrize(
    "name", [name for name, log in whole_logs.LOGS.items() if log["program"] == "DeepSpeed"]
)
def test_configured_rule_reproduces_log(name: str) -> None:
    log = whole_logs.LOGS[name]
    assert refuted(log, whole_logs.rule_of(log)) is None


@pytest.mark.parametrize(
    ("planted", "step"),
    [({"hysteresis": 1}, 10), ({"hysteresis": 3}, 10), ({"growth_interval": 101}, 510)],
)
def test_wrong_rule_is_refuted(planted: dict[str, int], step: int) -> None:
    assert refuted(SFT, whole_logs.rule_of(SFT).replace(**planted)) == step


@pytest.mark.parametrize(
    ("planted", "step"), [({}, None), ({"hysteresis": 1}, 100), ({"hysteresis": 3}, 100)]
)
def test_log_without_event_steps_is_followed(planted: dict[str, int], step: int | None) -> None:
    log = whole_logs.LOGS["GPT-2 345M, 4 TP"]
    assert log["events"] is None
    start = {**log, "lines": 3}
    assert refuted(start, whole_logs.rule_of(log).replace(**planted)) == step


def test_changed_number_is_refuted() -> None:
    events = [list(each) for each in SFT["events"]]
    events[70][3] -= 1
    assert refuted({**SFT, "events": events}, whole_logs.rule_of(SFT)) == 10 * (events[70][1] + 1)


def test_current_deepspeed_rule_is_refuted() -> None:
    assert (
        refuted(
            SFT,
            dialects.get(
                "deepspeed.DynamicLossScaler",
                **with_current_names("deepspeed.DynamicLossScaler", SFT["parameters"]),
            ),
        )
        == 920
    )


@settings(max_examples=examples(ms=10))
@given(st.data(), st.integers(1, 3), st.integers(2, 6), st.integers(3, 7), st.booleans())
def test_followed_bounds_contain_true_run(
    data: st.DataObject, hysteresis: int, interval: int, every: int, growths: bool
) -> None:
    rule = Rule(2.0**16, growth_interval=interval, hysteresis=hysteresis)
    history = data.draw(st.lists(st.booleans(), min_size=every, max_size=8 * every))
    history = history[: len(history) // every * every]
    scales = [16, *(round(log2(x)) for x in replay(rule, history).tolist())]
    blocks = []
    for first in range(0, len(history), every):
        places = range(first, first + every)
        events = [
            Event(data.draw(st.sampled_from([None, place + 1])), scales[place], scales[place + 1])
            for place in places
            if history[place] or (growths and scales[place + 1] > scales[place])
        ]
        blocks.append(
            Block(first + 1, first + every, sum(history[first : first + every]), None, events)
        )
    found, block = Follower(rule, growths_printed=growths).follow(blocks)
    assert block is None
    for (low, high), end in zip(whole_logs.scales(found), scales[every::every], strict=True):
        assert low <= end <= high
    assert whole_logs.bound(rule, blocks, found) >= sum(history) - 1e-9
