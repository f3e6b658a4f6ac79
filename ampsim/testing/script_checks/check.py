"""The checks of scripts, and their findings."""

from collections.abc import Sequence
from dataclasses import dataclass

from ampsim.testing.check import Check, stating
from ampsim.testing.judge import NotApplicableError
from ampsim.testing.lines import Place
from ampsim.testing.script_checks.trace import Event

BYPASSED = "the step bypasses the scaler, which skips it on inf and NaN: call scaler.step(optimizer)"
CHECKS: dict[str, Check] = {}
# Registers a function of an `Observation`.
check = stating(Check, CHECKS, label="script")


@dataclass(frozen=True)
class Finding:
    """A violation of a property.

    Attributes:
        where: The line that a report names.
        seen: What was seen there.
        cause: Why, and the fix.
        order: The calls that lead to it.
        excuse: Why the script is right nevertheless, as for a defect of a library; "" if it is not.
    """

    where: Place
    seen: str
    cause: str
    order: Sequence[Event | str] = ()
    excuse: str = ""


def needs(condition: object, reason: str) -> None:
    """Skip the check, with a reason, unless a condition holds."""
    if not condition:
        raise NotApplicableError(reason)
