"""Folding the machine over histories, and finding where two trajectories part."""

from typing import Any

import numpy as np
import pytest

from ampsim import Rule, init, replay, update
from ampsim.core import pipeline
from ampsim.core.policies import Probe
from ampsim.core.replay.fold import states


def test_replay_equals_fold() -> None:
    rule, history = Rule(init_scale=8.0, growth_interval=2), [0, 0, 1, 0, 1, 1, 0, 0]
    state, expected = init(rule), []
    for flag in history:
        state = update(rule, state, bool(flag))
        expected.append(state.scale)
    scales = replay(rule, history)
    assert scales.dtype == np.float64
    assert scales.tolist() == expected == [s.scale for s in states(rule, history)]


@pytest.mark.parametrize(
    "rule", [Rule(8.0, growth_interval=2), Rule(8.0, delay=2), Probe()]
)
def test_scale_before_update_is_used_one(rule) -> None:
    state, history, used = init(rule), [0, 0, 1, 0, 1], []
    for flag in history:
        used.append(state.scale)
        state = update(rule, state, bool(flag))
    assert replay(rule, history, when="before").tolist() == used
    assert replay(rule, [], when="before").tolist() == []


def test_unknown_when_raises() -> None:
    with pytest.raises(ValueError, match="when='during'"):
        replay(Rule(), [0], when="during")  # type: ignore[arg-type]


def test_synchronous_update_with_delay() -> None:
    rule = Rule(init_scale=8.0, delay=1)
    assert replay(rule, [1, 1, 1]).tolist() == [8, 4, 2]
    assert replay(rule, [1, 1, 1], is_async=[True, False, None]).tolist() == [8, 2, 2]


def test_unequal_lengths_raise() -> None:
    with pytest.raises(ValueError, match="1 flags for 2 updates"):
        replay(Rule(), [0, 1], is_async=[True])


@pytest.mark.parametrize(
    "history", ["01", ["0", "1"], np.array(["0", "1"]), b"01", [b"0", b"1"]], ids=str
)
def test_string_sequence_raises(history: Any) -> None:
    for call in (
        lambda: replay(Rule(), history),  # in which each digit is true
        lambda: replay(Rule(), [0, 0], is_async=history),
        lambda: pipeline.trajectory(Rule(), 0, history),
    ):
        with pytest.raises(TypeError, match="== '1' for"):
            call()


@pytest.mark.parametrize(
    ("rule", "depth"), [(Rule(delay=1), 1), (Probe(delay=1), 0), (Probe(), 1)]
)
def test_delay_must_equal_depth(rule: Any, depth: int) -> None:
    with pytest.raises(ValueError, match=f"delay={rule.delay}"):
        pipeline.start(rule, depth)


def test_out_of_order_tickets_raise() -> None:
    pipe = pipeline.begin_iteration(pipeline.begin_iteration(pipeline.start(Rule(), 1)))
    with pytest.raises(pipeline.WouldBlockError):
        pipeline.begin_iteration(pipe)
    done = pipeline.finish(pipe, 0, found_inf=True)
    for before, ticket in (
        (pipeline.start(Rule(), 1), 0),
        (pipe, 1),
        (pipe, 2),
        (done, 0),
        (done, 2),
    ):
        with pytest.raises(RuntimeError, match=f"ticket {ticket}"):
            pipeline.finish(before, ticket, found_inf=True)
