"""torch's default scaler over more than three of its intervals: the seed alone decides, and the machine repeats it."""

import torch

from ampsim import Rule
from experiments import torch_default
from figures import results
from tests.experiments import runs


def test_what_was_drawn_before_changes_nothing() -> None:
    rows = []
    for before in (1, 2):
        torch.manual_seed(before)
        rows.append(runs.fresh(torch_default, "torch"))
    assert rows[0] == rows[1]


def test_the_machine_repeats_the_committed_runs() -> None:
    found = results.load("torch_default")
    for row in found.records:
        runs.assert_replayed(row, Rule(), found.steps)
