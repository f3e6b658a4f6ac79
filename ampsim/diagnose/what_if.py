"""What other rules would have done with the same gradients, as far as a run's record tells."""

from typing import NamedTuple

import numpy as np

from ampsim.core import dialects
from ampsim.core.machine import Rule
from ampsim.core.replay.ceilings import replay_ceilings
from ampsim.diagnose.history import Floats, History
from ampsim.diagnose.words import scale_text


class Other(NamedTuple):
    """Another rule on the same gradients."""

    name: str
    skipped: int | None
    """None where the rule ends the run, as fairseq's does at its minimum."""
    final_scale: float | None
    ended: str = ""
    """What it says then."""

    @property
    def outcome(self) -> str:
        """What became of the run, in words."""
        if self.skipped is None:
            return f"ends the run: {self.ended}"
        return f"{self.skipped} skipped, ends at {scale_text(self.final_scale or 0.0)}"


OTHERS = {
    "torch's defaults": "torch.amp.GradScaler",
    "Megatron's": "megatron.core.DynamicGradScaler",
    "DeepSpeed's": "deepspeed.DynamicLossScaler",
    "fairseq's": "fairseq.DynamicLossScaler",
}


def ceilings_of(history: History) -> Floats:
    """Return for each step a scale at which its gradients were finite, the largest that the record lets us assume.

    A clean step was finite at its scale, and is taken to have been finite up to half of the nearest scale that
    overflowed, before or after it. A skipped one is taken to have been finite at half its scale.

    Returns:
        float64, shape (n,), one for each step: empty where the record does not tell of every step.
    """
    if not history.every_step or np.isnan(history.scale).any():
        return np.array([])
    skipped = history.skipped > 0
    at = np.flatnonzero(skipped)
    if not len(at):
        return np.maximum(history.scale, float(history.scale.max()))
    right = np.clip(np.searchsorted(at, np.arange(len(skipped))), 0, len(at) - 1)
    left = np.clip(right - 1, 0, len(at) - 1)
    steps = np.arange(len(skipped))
    nearest = np.where(np.abs(at[left] - steps) <= np.abs(at[right] - steps), at[left], at[right])
    assumed = history.scale[nearest] / 2
    return np.where(skipped, history.scale / 2, np.maximum(history.scale, assumed))


def other_rules(history: History) -> list[Other]:
    """Return what rules with other settings would have done; nothing where the record does not tell of every step."""
    ceilings = ceilings_of(history)
    if not len(ceilings):
        return []
    init = float(history.scale[0])
    rules = {name: dialects.get(dialect) for name, dialect in OTHERS.items() if dialect in dialects.ALL}
    rules |= {f"growth interval {interval}": _rule(init, interval) for interval in (20, 200, 2000)}
    return [_other(name, rule, ceilings) for name, rule in rules.items()]


def _other(name: str, rule: Rule, ceilings: Floats) -> Other:
    try:
        outcome = replay_ceilings(rule, ceilings)
    except Exception as error:  # DeepSpeed raises no other class
        return Other(name, None, None, str(error))
    return Other(name, len(outcome.skipped), outcome.state.scale)


def _rule(init: float, interval: int) -> Rule:
    return Rule(init if 2.0**-126 <= init <= 2.0**127 else 65536.0, growth_interval=interval)
