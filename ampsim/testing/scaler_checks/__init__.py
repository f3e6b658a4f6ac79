"""Checks of loss scalers. Importing this package registers them in `CHECKS`.

A check is a function of a `ScalerAdapter` and of values that hypothesis generates: a plain test,
whose asserts state the property. To add one, write it in the file of its level with the decorator
`check`. A scaler that is known to fail it is listed in `ampsim.testing.known_failures`.

`traits` are the intended differences of a scaler, `subject` is the scaler under test, `adapter`
drives it, `example` records what an example did, and `run` runs checks.
"""

from ampsim.testing.scaler_checks import (
    call_sequences,
    checkpoint,
    drop_in,
    numerics,
    optimizers,
    state_machine,
    threads,
)
from ampsim.testing.scaler_checks.check import CHECKS

__all__ = [
    "CHECKS",
    "call_sequences",
    "checkpoint",
    "drop_in",
    "numerics",
    "optimizers",
    "state_machine",
    "threads",
]
