"""Whether any parameter still moves: bfloat16 rounds small steps away, and a scaler may skip every one."""

from torch.optim import Optimizer

from ampsim.watch.measure import fingerprint
from ampsim.watch.run_header import parameters_of


class Standstill:
    """A look at the parameters' bits now and then, the first when it is made, which waits for the device."""

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self._bits = [
            int(value) for sums in fingerprint(parameters_of(optimizers)) for value in sums.tolist()
        ]
        self._steps = self._skips = 0

    def alarm(self, bits: list[int], steps: int, skips: int) -> str | None:
        """Return what is wrong after so many steps and skips since the beginning; None if a parameter has moved."""
        before, self._bits = self._bits, bits
        steps_before, self._steps = self._steps, steps
        skips_before, self._skips = self._skips, skips
        if before != bits:
            return None
        skips -= skips_before
        why = (
            f"{skips} of these steps were skipped"
            if skips
            else "none was skipped: is the learning rate too small?"
        )
        return f"no parameter has moved in {steps - steps_before} steps; {why}"
