"""Detection of parameters that do not change, and the likely reason."""

from typing import Any

from torch.optim import Optimizer

from ampsim.core.json_lines import Record
from ampsim.runs.record.measure import checksums, on_host, parameters_of
from ampsim.runs.record.step import Step

_SHORT = {"torch.bfloat16", "torch.float16"}


class StalledParameters:
    """Compares checksums of the parameters; the constructor waits for the device."""

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self._optimizers = optimizers
        self._before = self._on_host(checksums(parameters_of(optimizers)))
        self._begin()

    def _begin(self) -> None:
        self._records = self._skips = self._taken = 0
        self._norm = 0.0

    def warning(self, step: Step, record: Record) -> str | None:
        """Count a step; return a warning if no parameter changed since the last checksums, else
        None.
        """
        self._records += 1
        self._skips += record.get("skipped", False)
        self._norm += record.get("grad_norm", 0.0)
        if not step.checksums:
            return None
        self._taken = step.steps
        before, self._before = self._before, self._on_host(step.checksums)
        text = f"no parameter changed in {self._records} steps: {self._reason()}"
        self._begin()
        return text if before == self._before else None

    def _reason(self) -> str:
        if self._skips == self._records:
            return "all of these steps were skipped; run `ampsim explain` on the file"
        if not self._taken:
            return (
                "optimizer.step() was not called; "
                "call scaler.step(optimizer) between backward() and scaler.update()"
            )
        skips = (
            f"{self._skips} of these steps were skipped, and " if self._skips else ""
        )
        groups = [
            group for optimizer in self._optimizers for group in optimizer.param_groups
        ]
        if all(group.get("lr") == 0 for group in groups):
            return f"{skips}the learning rate is 0"
        if self._norm == 0:
            return f"{skips}the gradients are 0"
        short = {str(param.dtype) for param in parameters_of(self._optimizers)} & _SHORT
        rounded = f", and {min(short)} rounds small steps to 0" if short else ""
        return f"{skips}the steps are too small{rounded}; check the learning rate"

    @staticmethod
    def _on_host(sums: list[Any]) -> list[Any]:
        return [on_host(values) for values in sums]
