"""Detection of stalled parameters: bfloat16 rounds small steps to 0, and a scaler may skip all steps."""

from torch.optim import Optimizer

from ampsim.watch.measure import fingerprint
from ampsim.watch.run_header import parameters_of


class Standstill:
    """Compares checksums of the parameters; the constructor waits for the device."""

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self._bits = [
            int(value) for sums in fingerprint(parameters_of(optimizers)) for value in sums.tolist()
        ]
        self._steps = self._skips = 0

    def alarm(self, bits: list[int], steps: int, skips: int) -> str | None:
        """Return a warning if no parameter changed since the last call, else None."""
        before, self._bits = self._bits, bits
        steps_before, self._steps = self._steps, steps
        skips_before, self._skips = self._skips, skips
        if before != bits:
            return None
        skips -= skips_before
        why = (
            f"{skips} of these steps were skipped"
            if skips
            else "no step was skipped; the learning rate may be too small"
        )
        return f"no parameter changed in {steps - steps_before} steps; {why}"
