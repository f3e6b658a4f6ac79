"""Runs whose loss scale may halve for ever: their arms, and the step at which that begins."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from experiments.training.loop import SHORT, Arm


@dataclass(frozen=True, kw_only=True)
class CrashArm(Arm):
    """A precision and a loss scale, with a learning rate."""

    lr: float  # of Adam

    def scaler(self, device: str) -> torch.amp.GradScaler:  # type: ignore[override]
        """Return a new scaler of torch, whose scale falls to 0, where ours would stop."""
        enabled, interval = self.dtype == "float16", self.growth_interval or SHORT
        return torch.amp.GradScaler(
            device, self.init_scale, growth_interval=interval, enabled=enabled
        )


def crash_step(
    forward_overflow: Sequence[int], found_inf: Sequence[int], steps: int
) -> int | None:
    """Return the step from which on the forward pass overflowed and every step was skipped, to the
    end; or None.
    """
    start = steps
    while start - 1 in found_inf and start - 1 in forward_overflow:
        start -= 1
    return start if start < steps else None
