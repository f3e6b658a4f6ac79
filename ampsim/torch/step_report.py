"""What the steps of one iteration did."""

from collections.abc import Iterator

from torch import Tensor
from torch.optim import Optimizer


class StepReport:
    """Report of one iteration's steps. Recording does not wait for a device; reading does.

    It is correct for fused optimizers too, whose ``step`` is called although their kernel skips.
    The report keeps references to its optimizers.
    """

    def __init__(self, iteration: object = None) -> None:
        """Start an empty report.

        Args:
            iteration: Any object that the iteration has and no other.
        """
        self.iteration = iteration
        # by id: an optimizer may have no hash; the value keeps it, so that the id stays its own
        self._steps: dict[int, tuple[Optimizer, list[Tensor]]] = {}

    def add(self, optimizer: Optimizer, found_inf: list[Tensor]) -> None:
        """Record the flags of an optimizer's step, shape (), which nothing writes afterwards."""
        self._steps[id(optimizer)] = optimizer, found_inf

    def __iter__(self) -> Iterator[Optimizer]:
        """Iterate over the optimizers that were stepped or skipped."""
        return (optimizer for optimizer, _ in [*self._steps.values()])

    def skipped_by(self, optimizer: Optimizer) -> bool:
        """Return whether this optimizer's step was skipped.

        Raises:
            KeyError: If the optimizer had no step in the iteration.
        """
        if id(optimizer) not in self._steps:
            raise KeyError(
                f"{type(optimizer).__name__} had no step in this iteration: expected one; "
                "call scaler.step(optimizer) first"
            )
        return any(self._steps[id(optimizer)][1])

    @property
    def skipped(self) -> bool:
        """Whether any optimizer's step was skipped."""
        return any(self.skipped_by(optimizer) for optimizer in self)

    def __repr__(self) -> str:
        return f"StepReport(skipped={self.skipped})"

    def __bool__(self) -> bool:
        raise TypeError(
            "a StepReport is neither true nor false: expected a question; "
            "read .skipped, or .skipped_by(optimizer)"
        )
