"""What may foretell a crash: each signal flags the steps that its words say."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ampsim import Rule
from experiments.training import signals
from experiments.training.loop import Step

CALM = {"log2_scale": 16.0, "loss": 1.0, "norm": 1.0, "activation": 1.0, "ceiling": 20.0}
INF = math.inf
FLAGGED: list[tuple[str, str, list[float], list[int]]] = [  # signal, column, its values, steps
    ("3 skips in a row", "found_inf", [1, 1, 0, 1, 1, 1, 1, 0], [5, 6]),
    ("scale < init / 2^8", "log2_scale", [16, 8, 7.9], [2]),
    ("T1 budget exceeded", "found_inf", [0, 0, 0, 1, 1, 0, 0, 1, 0, 0], [7, 8]),  # three of six
    ("gradient norm > 10 medians", "norm", [1, 2, 3, 4, 5, 30, 36, INF], [6]),
    ("gradient norm > 10 medians", "norm", [100] * 50 + [1] * 26 + [11], [76]),
    ("loss > 2 medians", "loss", [1, 1, 1, 1, 9, 2, 2.1, math.nan], [6, 7]),
    ("activation > 2^14", "activation", [2.0**14, 2.0**14 + 1, INF], [1, 2]),
    ("ceiling fell 4 bits", "ceiling", [20, 16.1, 16], [2]),
    ("ceiling fell 4 bits", "ceiling", [20, *[17] * 19, 16, 16], [20]),
]


def series(column: str, values: list[float]) -> signals.Series:
    """Return a run that is calm but for one column; three clean steps grow its scale."""
    calm = {name: np.full(len(values), value) for name, value in CALM.items()}
    columns: dict[str, Any] = {"found_inf": np.zeros(len(values), np.bool_), **calm}
    columns[column] = np.array(values, columns[column].dtype)
    return signals.Series(Rule(2.0**16, growth_interval=3), **columns)


@pytest.mark.parametrize(("signal", "column", "values", "steps"), FLAGGED)
def test_signals_flag_what_they_say(signal: str, column: str, values: Any, steps: Any) -> None:
    run = series(column, values)
    assert np.flatnonzero(signals.SIGNALS[signal](run)).tolist() == steps


def test_alarms_keep_the_runs_steps() -> None:
    run = series("activation", [2.0**15, 1, 2.0**15, 2.0**15, 1, 2.0**15])
    watched = "activation > 2^14"
    assert signals.alarms(run)[watched] == [[0, 0], [2, 3], [5, 5]]
    assert signals.alarms(run, 3)[watched] == [[3, 3], [5, 5]]
    assert [signals.lead([[3, 5], [9, 9]], crash) for crash in (2, 3, 9)] == [None, 0, 6]
    assert signals.lead([], 9) is None


def test_the_largest_activation_is_seen() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh())
    nn.init.constant_(model[0].weight, 2.0)
    largest = signals.watch_activations(model)
    for given, seen in (([[3.0], [-4.0]], 8.0), ([[0.5]], 1.0), ([[math.nan]], INF)):
        model(torch.tensor(given))
        assert largest() == seen


def test_a_step_is_seen_unscaled() -> None:
    nothing: Any = None
    gradient = 8 * torch.tensor([3.0, -4.0])
    seen = signals.observe(Step(0, 0.5, 8.0, gradient, False, nothing), 7.0)
    assert seen[:5] == (False, 3.0, 0.5, 5.0, 7.0)
    assert 2.0**seen.ceiling * 4 < 65520 <= 2 * 2.0**seen.ceiling * 4
    assert signals.observe(Step(0, 0.5, 8.0, gradient, True, nothing), 7.0).ceiling == 2.0
