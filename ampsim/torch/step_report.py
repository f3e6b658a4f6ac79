"""What the steps of one iteration did."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch.optim import Optimizer


@dataclass(frozen=True, eq=False, repr=False)
class StepReport:
    """Report of one iteration's steps. Recording does not wait for a device; reading does.

    It is correct for fused optimizers too, whose ``step`` is called although their kernel skips.
    The report keeps references to its optimizers.

    Attributes:
        steps: Each optimizer and its flags, true if a gradient was not finite; nothing writes them
            afterwards.
    """

    steps: Sequence[tuple[Optimizer, Sequence[object]]]

    def __iter__(self) -> Iterator[Optimizer]:
        """Iterate over the optimizers that were stepped or skipped."""
        return (optimizer for optimizer, _ in self.steps)

    def skipped_by(self, optimizer: Optimizer) -> bool:
        """Return whether this optimizer's step was skipped.

        Raises:
            KeyError: If the optimizer had no step in the iteration.
        """
        for stepped, found_inf in self.steps:
            if stepped is optimizer:
                return any(found_inf)
        raise KeyError(
            f"{type(optimizer).__name__} had no step in this iteration: expected one; "
            "call scaler.step(optimizer) first"
        )

    @property
    def skipped(self) -> bool:
        """Whether any optimizer's step was skipped."""
        return any(any(found_inf) for _, found_inf in self.steps)

    def __repr__(self) -> str:
        return f"StepReport(skipped={self.skipped})"

    def __bool__(self) -> bool:
        raise TypeError(
            "a StepReport is neither true nor false: expected a question; "
            "read .skipped, or .skipped_by(optimizer)"
        )
