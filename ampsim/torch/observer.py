"""What a scaler tells whoever watches it: where gradients are complete, and what was found in them."""

from typing import Protocol

from torch import Tensor
from torch.optim import Optimizer

from ampsim.torch.step.gradient_owners import ScaleTicket


class Observer(Protocol):
    """A watcher of a `GradScaler`, see `GradScaler.observe`. A method that raises ends the call that it came from."""

    def gradients(self, ticket: ScaleTicket, optimizer: Optimizer, scale: Tensor) -> None:
        """Take note of gradients that are complete and still multiplied by `scale`, shape (), float32.

        Called on the thread and the stream that are about to divide or check them, once per optimizer and ticket.
        """

    def closing(self, ticket: ScaleTicket) -> None:
        """Take note that `update` was called, on the caller's thread."""

    def closed(self, ticket: ScaleTicket, found_inf: list[tuple[Optimizer, list[Tensor]]]) -> None:
        """Take note of each optimizer's flags, (), float32, 0.0 or 1.0: the update has been made.

        Called in the order of tickets, on the thread that runs updates.
        """
