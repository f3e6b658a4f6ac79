"""What a replay takes and what it refuses: traces, memory maps, states, policies, rules with
quirks.
"""

import math
import re
from typing import Any

import numpy as np
import pytest

from ampsim import Rule, State, dialects, replay, replay_thresholds
from ampsim.core.policies import Headroom
from ampsim.core.quirks import RaiseBelow
from ampsim.core.replay.thresholds import index_thresholds

INF, NAN = math.inf, math.nan
TRACE = np.exp2(np.random.default_rng(1).normal(16, 2, 3000)).astype(np.float32)


@pytest.mark.parametrize(
    ("trace", "error", "shown"),
    [
        ([1.0, 2.0, NAN], ValueError, "thresholds[2]=nan"),
        (np.full(9, -1.5, np.float32), ValueError, "thresholds[0]=-1.5"),
        ([INF, -INF], ValueError, "thresholds[1]=-inf"),
        ([], ValueError, "0 steps"),
        (np.ones((2, 3)), ValueError, "shape (2, 3)"),
        ("0001000", TypeError, "'0001000'"),
        (np.ones(3, int), TypeError, "int64"),
        (np.ones(3, np.float16), TypeError, "float16"),
        (np.ones(3, ">f4"), TypeError, ">f4"),
        ([True], TypeError, "bool"),
    ],
)
def test_invalid_trace_raises(trace: Any, error: type[Exception], shown: str) -> None:
    with pytest.raises(error, match=re.escape(shown)):
        replay_thresholds(Rule(), trace)


@pytest.mark.parametrize("bad", [NAN, -NAN, -1.0, -INF, -(2.0**-149)])
@pytest.mark.parametrize("step", [0, 63, 64, 999, 1000])
def test_invalid_threshold_raises_with_step(step: int, bad: float) -> None:
    trace = np.full(1001, INF, np.float32)
    trace[-1] = trace[step] = bad
    with pytest.raises(ValueError, match=rf"thresholds\[{step}\]={bad!r}"):
        index_thresholds(trace)


@pytest.mark.parametrize(
    ("rule", "state"),
    [
        (Rule(quirks=(RaiseBelow(1e-4),)), None),
        (Headroom(), None),
        (Rule.unchecked(growth_interval=0), None),
        (Rule(delay=1), State(1.0, pending=(2.0, 4.0))),
    ],
)
def test_unsupported_event_replay_uses_fold(rule: Any, state: Any) -> None:
    with pytest.raises(ValueError, match="method='events'"):
        replay_thresholds(rule, TRACE, method="events", state=state)
    auto = replay_thresholds(rule, TRACE, state=state)
    fold = replay_thresholds(rule, TRACE, method="fold", state=state)
    assert auto.state == fold.state
    assert auto.scale_changes.tolist() == fold.scale_changes.tolist()


PATIENT, QUIRKY, LATE = (
    "megatron.core.DynamicGradScaler",
    "deepspeed.DynamicLossScaler",
    "mxnet.contrib.amp.LossScaler",
)


@pytest.mark.parametrize("name", [PATIENT, QUIRKY, LATE, "jmp.DynamicLossScale"])
def test_dialect_replay_matches_its_skips(name: str) -> None:
    rule = dialects.get(name, growth_interval=20)
    done = replay_thresholds(rule, TRACE)
    flags = np.zeros(len(TRACE), bool)
    flags[done.skipped] = True
    assert done.scales().tolist() == replay(rule, flags).tolist()
    before = np.concatenate(([rule.init_scale], done.scales()[:-1]))
    assert ((before > TRACE) == flags).all()


def test_minimum_scale_error_names_step() -> None:
    rule = Rule(1.0, quirks=(RaiseBelow(0.25),))
    with pytest.raises(FloatingPointError) as raised:
        replay_thresholds(rule, [INF, 0.0, 0.0, 0.0, 0.0])
    assert "update 2 of 5" in raised.value.__notes__[0]


def test_replay_accepts_any_array_layout() -> None:
    rule = Rule(growth_interval=20)
    expected = replay_thresholds(rule, TRACE).scale_changes.tolist()
    locked = TRACE.copy()
    locked.flags.writeable = False
    for trace in (
        TRACE.tolist(),
        np.repeat(TRACE, 2)[::2],
        locked,
        index_thresholds(TRACE),
    ):
        assert replay_thresholds(rule, trace).scale_changes.tolist() == expected
