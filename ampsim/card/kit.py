"""Probe: the kit's checks, with scaler, parameters and gradients on the device; those of threads are for a CPU."""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ampsim.core.machine import Rule
from ampsim.records import Record
from ampsim.torch import GradScaler

LEVELS = (0, 5, 1, 2, 4)  # the most valuable first
EXAMPLES = 20  # histories per check
SCALERS: dict[str, Any] = {"torch": torch.amp.GradScaler, "ampsim": GradScaler}


def run(name: str, device: str, left: Callable[[], float]) -> Record:
    """Judge one scaler by the checks that there is time for; torch's is expected to fail as it does on the CPU."""
    if importlib.util.find_spec("hypothesis") is None:
        return {"skipped": "hypothesis is not installed; pip install 'ampsim[card]'"}
    from ampsim.testing import Subject, known
    from ampsim.testing.kit.judge import chosen, judge

    checks = [each for level in LEVELS for each in chosen([level])]
    subject = Subject(partial(make, SCALERS[name], device), name=name)
    outcomes, texts = {}, {}
    with torch.device(device):  # where whatever a check makes comes to lie
        for result in judge(subject, checks, examples=EXAMPLES, expected=known.TORCH if name == "torch" else {}):
            outcomes[result.check.name] = result.outcome
            if result.is_finding:
                texts[result.check.name] = result.text
            if not left():
                break
    return {"checks": outcomes, "findings": texts, "of": len(checks)}


def make(kind: Any, device: str, rule: Rule, *, enabled: bool = True) -> Any:
    """Make a scaler on the device."""
    return kind(device, rule.init_scale, rule.growth_factor, rule.backoff_factor, rule.growth_interval, enabled=enabled)
