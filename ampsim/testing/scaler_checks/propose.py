"""Propose `Traits` and expected failures for a new scaler."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from ampsim.testing.examples import Examples
from ampsim.testing.known_failures import TORCH
from ampsim.testing.scaler_checks.check import ScalerCheck
from ampsim.testing.scaler_checks.subject import Subject
from ampsim.testing.scaler_checks.suggest_traits import excusing_traits


def propose(
    subject: Subject, checks: Sequence[ScalerCheck], examples: Examples
) -> tuple[Subject, dict[str, str]]:
    """Return the scaler with the traits that it shows, and the failures that it inherits from
    torch's scaler.

    A trait is proposed if it lets a check pass that fails without it. Whether the difference is
    intended remains to be decided.

    Args:
        subject: Scaler to observe.
        checks: Checks to run.
        examples: Examples of each run.

    Returns:
        tuple: The scaler with additional traits; and check -> reason, for ``expected_failures``.
    """
    declared, known = (
        subject.declared(unsupported=frozenset(subject.missing)),
        dict[str, str](),
    )
    for check in checks:
        if check.skip_reason(declared):
            continue
        failure = check.falsify(declared, examples)
        if failure is None:
            continue
        passes = partial(check.passes, examples=examples)
        changes: dict[str, Any] = dict(
            excusing_traits(check, declared, failure.error, passes)
        )
        if changes:
            declared = declared.declared(**changes)
        elif declared.is_torchs and check.name in TORCH:
            known[check.name] = TORCH[check.name]
    return declared, known
