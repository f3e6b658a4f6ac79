"""The two scalers that are called from two threads: torch's as a naive user would, ours with a
ticket an iteration.
"""

from typing import Any

import torch

from ampsim.torch import AsyncGradScaler

Iteration = dict[str, Any]  # our ticket, or nothing
INIT_SCALE = 2.0**12


class Naive:
    """torch's scaler: whichever scale it holds when it is asked."""

    def __init__(
        self, growth_interval: int, depth: int, init_scale: float = INIT_SCALE
    ) -> None:
        self.scaler: Any = torch.amp.GradScaler(
            "cpu", init_scale, growth_interval=growth_interval
        )

    def begin(self) -> Iteration:
        """Return what each call about one iteration is given, and what travels with its gradients."""
        return {}

    def unscale(self, optimizer: torch.optim.Optimizer, iteration: Iteration) -> None:
        self.scaler.unscale_(optimizer, **iteration)

    def finish(self, optimizer: torch.optim.Optimizer, iteration: Iteration) -> float:
        """Step and update; return the newest scale."""
        self.scaler.step(optimizer, **iteration)
        self.scaler.update(**iteration)
        return float(self.scaler.get_scale())

    def close(self) -> None:
        """Do nothing: no thread waits for it."""


class Tickets(Naive):
    """Our scaler: the ticket travels with the gradients."""

    def __init__(
        self, growth_interval: int, depth: int, init_scale: float = INIT_SCALE
    ) -> None:
        self.scaler = AsyncGradScaler(
            "cpu", init_scale, growth_interval=growth_interval, depth=depth
        )

    def begin(self) -> Iteration:
        return {"ticket": self.scaler.begin_iteration()}

    def close(self) -> None:
        self.scaler.close()


MAKERS: dict[str, type[Naive]] = {"torch": Naive, "ampsim": Tickets}
