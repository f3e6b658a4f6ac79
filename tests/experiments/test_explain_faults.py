"""Planted faults: what each does to a run, and what its log is."""

import math

import pytest

from ampsim.runs.explain_log import explain
from experiments import explain_faults
from experiments.training import fp16, printed_logs


@pytest.mark.parametrize("program", printed_logs.PROGRAMS)
def test_printed_log_is_recognized(program, tmp_path):
    steps = [
        printed_logs.Step(8.0, 4.0 if i == 14 else 8.0, i == 14, math.inf if i == 14 else 1.5, 2.0)
        for i in range(30)
    ]
    path = tmp_path / "train.log"
    path.write_text("\n".join(printed_logs.PROGRAMS[program](steps)))
    explanation = explain(path)
    assert sum(count for _, _, count, *_ in explanation.skips) == 1
    assert explanation.history.role("loss")[0].values[-1] == 2.0


def test_spike_ends_and_forward_overflow_stays():
    model = explain_faults.Net(dead=False)
    assert [explain_faults.plant(model, "data spike", since, 4.0) for since in (-1, 0, 9, 10)] == [
        1.0,
        16.0,
        16.0,
        1.0,
    ]
    explain_faults.plant(model, "loss-not-finite", 0, 4.0)
    x = explain_faults.torch.ones(2, explain_faults.WIDTH)
    with fp16.autocast("cpu", fp16=True):
        assert not model(x).isfinite().all()
