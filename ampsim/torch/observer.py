"""Interface of observers, which a scaler notifies of complete gradients and of found_inf."""

from typing import Protocol

from torch import Tensor
from torch.optim import Optimizer

from ampsim.torch.step.gradient_owners import ScaleTicket


class Observer(Protocol):
    """Observer of a `GradScaler`, see `GradScaler.observe`. The scaler's call raises what a method raises."""

    def gradients(self, ticket: ScaleTicket, optimizer: Optimizer, scale: Tensor) -> None:
        """Read complete gradients, still multiplied by `scale` of shape () and dtype float32.

        Called on the thread and the stream that are about to divide or check them, once per optimizer and ticket.
        """

    def closing(self, ticket: ScaleTicket) -> None:
        """Note that `update` was called; runs on the caller's thread."""

    def closed(self, ticket: ScaleTicket, found_inf: list[tuple[Optimizer, list[Tensor]]]) -> None:
        """Read each optimizer's flags, 0.0 or 1.0, of shape () and dtype float32, after the update.

        Called in the order of tickets, on the thread that runs updates.
        """
