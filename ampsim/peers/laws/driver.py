"""What a law does with a scaler, in words that a test shares: the text of this class stands in it."""

from typing import Any


class Driver:
    """Iterations of three gradients, each kept in `steps`."""

    steps: list[Any]

    def iterate(self, *flags: bool) -> None:
        """Go through one iteration per flag, whose gradients have an infinity where it is true."""
        for found_inf in flags:
            self.take(1.0, float("inf") if found_inf else 1.0, 1.0)

    def train(self, *gradients: float) -> None:
        """Go through one iteration with these gradients of the loss, scaled as the loss is."""
        self.take(*[self.scale_loss(gradient) for gradient in gradients])

    def feed(self, *scaled: float) -> None:
        """Go through one iteration with these gradients of the scaled loss."""
        self.take(*scaled)

    def take(self, *scaled: float) -> None:
        """Go through one iteration, and keep it."""
        self.steps.append(self.step(scaled))

    def scale_loss(self, loss: float) -> float:
        raise NotImplementedError

    def step(self, scaled: tuple[float, ...]) -> Any:
        raise NotImplementedError
