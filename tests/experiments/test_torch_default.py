"""torch's default scaler over more than three of its intervals: the seed alone decides."""

import torch

from experiments import torch_default
from tests.experiments import runs


def test_what_was_drawn_before_changes_nothing() -> None:
    rows = []
    for before in (1, 2):
        torch.manual_seed(before)
        rows.append(runs.fresh(torch_default, "torch"))
    assert rows[0] == rows[1]
