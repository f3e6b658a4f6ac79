"""A check of scripts, and its findings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ampsim.testing.check import Check, stating
from ampsim.testing.judge import NotApplicableError
from ampsim.testing.script_checks.trace import Event

# Gradients that depend on the loss scale; a skipped step that changes something.
Effect = Literal["scale", "skip"]
Blamed = set[tuple[Effect, str]]  # effects on optimizers that earlier findings explain


@dataclass(frozen=True)
class Finding:
    """A violation of a property.

    Attributes:
        where: file:line.
        seen: What was seen there.
        cause: Why, and the fix.
        order: The calls that lead to it.
        optimizers: Names of the optimizers whose gradients it explains.
    """

    where: str
    seen: str
    cause: str
    order: Sequence[Event | str] = ()
    optimizers: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class ScriptCheck(Check):
    """A check of scripts. Its function takes an observation and what earlier findings explain."""

    group: str = "script"
    explains: Sequence[Effect] = ()


CHECKS: dict[str, ScriptCheck] = {}  # in the order in which they run


def check(*explains: Effect) -> Callable[..., ScriptCheck]:
    """Register a function as a check: its name and the first paragraph of its docstring are the check's.

    Args:
        explains: What a finding is the cause of, so that later checks do not report it of the same optimizers.
    """
    return partial(stating, ScriptCheck, CHECKS)(explains=explains)


def needs(condition: object, reason: str) -> None:
    """Skip the check, with a reason, unless a condition holds."""
    if not condition:
        raise NotApplicableError(reason)
