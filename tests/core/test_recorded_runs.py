"""Recorded traces: the state machine does what other scalers did, to the last bit."""

import dataclasses
from pathlib import Path

import pytest

from ampsim import dialects
from ampsim.core.recorded_runs import Trace, read

RECORDED = Path(__file__).parent.parent / "traces" / "recorded.jsonl.gz"
TRACES = list(read(RECORDED))
TRACE = Trace(
    "torch.amp.GradScaler",
    {"init": 4.0, "interval": 2},
    (False, False, True),
    (4.0, 8.0, 4.0),
)


@pytest.mark.parametrize("system", dialects.names())
def test_state_machine_matches_recorded_traces(system: str) -> None:
    traces = [trace for trace in TRACES if trace.system == system]
    assert traces
    assert not [trace for trace in traces if not trace.is_repeated()]


@pytest.mark.parametrize(
    "change",
    [
        {"scale": (4.0, 8.0, 8.0)},
        {"found_inf": (False, False, False)},
        {
            "scale": (4.0, 8.0),
            "raised": {"step": 2, "type": "Exception", "msg": "x"},
        },
        {"params": {"init": 4.0, "interval": 3}},
        {"scale": (4.0, 8.0 * (1 + 2**-52), 4.0)},
    ],
)
def test_single_wrong_bit_is_mismatch(change: dict[str, object]) -> None:
    assert TRACE.is_repeated()
    assert not dataclasses.replace(TRACE, **change).is_repeated()


def test_a_missing_raise_is_a_mismatch() -> None:
    gives_up = next(trace for trace in TRACES if trace.raised)
    assert gives_up.is_repeated()
    silent = dataclasses.replace(gives_up, raised=None, scale=(*gives_up.scale, 1.0))
    assert not silent.is_repeated()
    other_text = {**gives_up.raised, "msg": "?"}
    assert not dataclasses.replace(gives_up, raised=other_text).is_repeated()
