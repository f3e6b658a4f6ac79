"""Probe: the kit's laws, with scaler, parameters and gradients on the device; those of threads are for a CPU."""

import importlib.util
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ampsim.card.device import Skipped
from ampsim.records import Record
from ampsim.torch import GradScaler

LEVELS = (0, 5, 1, 2, 4)  # the most valuable first
EXAMPLES = 20  # histories per law
SCALERS: dict[str, Any] = {"torch": torch.amp.GradScaler, "ampsim": GradScaler}


def ask(name: str, device: str) -> Iterator[Record]:
    """Judge one scaler law by law; torch's is expected to fail as it does on the CPU."""
    if importlib.util.find_spec("hypothesis") is None:
        raise Skipped("hypothesis is not installed; pip install 'ampsim[card]'")
    from ampsim.testing import Subject, known
    from ampsim.testing.kit.judge import chosen, judge

    laws = [each for level in LEVELS for each in chosen([level])]
    subject = Subject(partial(SCALERS[name], device), name=name)
    found: Record = {"checks": {}, "findings": {}, "of": len(laws)}
    with torch.device(device):  # where whatever a law makes comes to lie
        for result in judge(subject, laws, examples=EXAMPLES, expected=known.TORCH if name == "torch" else {}):
            found["checks"][result.check.name] = result.outcome
            if result.is_finding:
                found["findings"][result.check.name] = result.text
            yield found
