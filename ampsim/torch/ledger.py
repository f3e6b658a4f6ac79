"""What was done to each optimizer within one ticket: its stage, what its gradients were found to be."""

import enum
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer


class Stage(enum.Enum):
    """Where an optimizer stands between two updates."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


@dataclass(eq=False)
class Record:
    """One optimizer within one ticket. Used by one thread at a time: whoever moved `stage` on."""

    stage: Stage = Stage.READY
    found_inf: dict[torch.device, Tensor] = field(default_factory=dict)  # (), float32, 0.0 or 1.0
    folded: Tensor | None = None  # (), float32: what the gradients are still to be divided by

    def found_on(self, device: torch.device) -> Tensor:
        """This optimizer's flag on a device, made when it is first asked for."""
        if device not in self.found_inf:
            self.found_inf[device] = torch.zeros((), dtype=torch.float32, device=device)
        return self.found_inf[device]


@dataclass(frozen=True)
class StepReport:
    """What the steps of one iteration did. Reading it waits for the device; making it does not.

    True for fused optimizers too, whose ``step`` is called although their kernel skips.
    """

    _steps: tuple[tuple["weakref.ref[Optimizer]", tuple[Tensor, ...]], ...] = ()

    def __iter__(self) -> Iterator[Optimizer]:
        """The optimizers that were stepped or skipped and still live."""
        return (optimizer for ref, _ in self._steps if (optimizer := ref()) is not None)

    def skipped_by(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer's step was skipped. KeyError if it had none."""
        for ref, flags in self._steps:
            if ref() is optimizer:
                return any(flag.item() != 0 for flag in flags)
        raise KeyError(f"{type(optimizer).__name__} had no step in this iteration: call scaler.step(optimizer) first")

    @property
    def skipped(self) -> bool:
        """Whether any optimizer's step was skipped."""
        return any(flag.item() != 0 for _, flags in self._steps for flag in flags)

    def __bool__(self) -> bool:
        raise TypeError("a StepReport is neither true nor false: read .skipped, or .skipped_by(optimizer)")

    def adding(self, optimizer: Optimizer, record: Record) -> "StepReport":
        """This report with one more optimizer."""
        # The tensors are clones: a record's own may still be summed into.
        flags = tuple(flag.clone() for flag in record.found_inf.values())
        return StepReport((*self._steps, (weakref.ref(optimizer), flags)))
