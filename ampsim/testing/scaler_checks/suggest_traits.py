"""Suggest `Traits` from the behavior of a scaler: as the hint of a failure, and for a new scaler.

A hint is a declaration under which the failed check passes. It does not say that the difference is
intended.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ampsim.core.machine import round_to_float32
from ampsim.testing.check import Check
from ampsim.testing.known_failures import TORCH
from ampsim.testing.scaler_checks.example import example_of, readable
from ampsim.testing.scaler_checks.subject import Subject

LARGEST = 2.0**127  # the largest scale without a max_scale
ODD = 1700.0  # not a power of two
SHOWN = {  # feature -> what the failure of a scaler without it says
    "float16": r"was accepted",
    "refusals": r"was accepted|optimizer 1 saw",
    "saved_constants": r"^after resuming",
    "step_value": r"^step\(\) returned None",
}
Changes = Mapping[str, Any]  # of traits
Passes = Callable[[Subject], bool]


def suggestion(
    check: Check, subject: Subject, error: BaseException, passes: Passes
) -> list[tuple[str, str]]:
    """Return the hint of a failure as lines (label, text): traits to declare, or an expected
    failure.

    Args:
        check: The check that failed.
        subject: The scaler under test.
        error: What the minimal example raised.
        passes: Returns whether the check passes or is skipped for a scaler with other traits.
    """
    if changes := excusing_traits(check, subject, error, passes):
        return [("hint", hint(subject, changes))]
    if subject.is_torchs and check.name in TORCH:
        return [
            (
                "known",
                f"in known_failures.TORCH, as torch's scaler fails it too: {TORCH[check.name]}",
            )
        ]
    return []


def excusing_traits(
    check: Check, subject: Subject, error: BaseException, passes: Passes
) -> Changes:
    """Return the fewest observed traits under which a failed check passes or is skipped; {} for
    none.
    """
    changes = dict(observed_traits(subject))
    if check.name == "optimizers_share_one_scale":
        changes["skips"] = "all"
    lacks = [name for name, text in SHOWN.items() if re.search(text, str(error))]
    lacks = [] if subject.is_torchs else lacks
    if check.name == DECLARED:
        return {"unsupported": frozenset(subject.missing)}
    # One trait is enough for most failures; else all of them, without those that are not needed.
    single = [{name: value} for name, value in changes.items()]
    for change in [*single, *({"unsupported": frozenset({name})} for name in lacks)]:
        if passes(_declared(subject, change)):
            return change
    if lacks:
        changes["unsupported"] = changes.get("unsupported", frozenset()).union(lacks)
    if len(changes) < 2 or not passes(_declared(subject, changes)):
        return {}
    for name in [*changes]:
        fewer = {other: value for other, value in changes.items() if other != name}
        if passes(_declared(subject, fewer)):
            changes = fewer
    return changes


DECLARED = "missing_features_are_declared"


def _declared(subject: Subject, changes: Changes) -> Subject:
    """Return the scaler with these additional traits; the same one each time, as its runs are kept."""
    key = f"declared {sorted(changes.items())}"
    declared: Subject = subject.cache.setdefault(key, subject.declared(**changes))
    return declared


def hint(subject: Subject, changes: Changes) -> str:
    """Write the declaration of traits, for Python and for the shell."""
    text = f"if intentional, declare it with Traits({written(changes)})"
    options = " ".join(subject.declared(**changes).traits.as_options())
    return readable(
        text if "gives_up" in changes else f"{text}, or in the shell: {options}"
    )


def written(changes: Changes) -> str:
    """Write traits as the arguments of `Traits`."""
    return ", ".join(f"{name}={_written(value)}" for name, value in changes.items())


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(kind.__name__ for kind in value)},)"
    if value and isinstance(value, frozenset):
        return f"{{{', '.join(map(repr, sorted(value)))}}}"
    return repr(value)


# ---------------------------------------------------------------------------------- observation


@dataclass(frozen=True)
class Run:
    """A scaler after some updates, its scale before each update and at the end, and its exception."""

    scaler: Any
    scales: list[float]
    raised: Exception | None

    @property
    def last(self) -> float:
        """The last scale from get_scale(), which may have more bits than the scale of a loss."""
        kept = float(self.scaler.get_scale())
        return kept if round_to_float32(kept) == self.scales[-1] else self.scales[-1]


def observed_traits(subject: Subject) -> Changes:
    """Return the traits that a scaler shows and that are not declared; each scaler is observed
    once.
    """
    if "observed" not in subject.cache:
        subject.cache["observed"] = dict(_observed(subject))
    shown: Changes = subject.cache["observed"]
    declared = vars(subject.traits)
    return {name: value for name, value in shown.items() if declared[name] != value}


def _run(subject: Subject, found_inf: Sequence[bool], **constants: float) -> Run:
    example = example_of(subject)
    scaler, scales, raised = example.make(**constants), list[float](), None
    try:
        for overflows in found_inf:
            scales.append(example.iterate(scaler, overflows))
    except Exception as error:
        raised = error
    return Run(scaler, [*scales, example.loss_scale(scaler)], raised)


def _observed(subject: Subject) -> Iterator[tuple[str, Any]]:
    takes_any = False
    with suppress(Exception):
        takes_any = _run(subject, [], init_scale=ODD).scales == [ODD]
    with suppress(Exception):
        if not takes_any and _run(subject, [], init_scale=1024.0).scales == [1024.0]:
            yield "powers_of_two", True
        down = _run(subject, [True] * 9, growth_interval=1).scales
        up = _run(subject, [False] * 9, growth_interval=1).scales
        if len({*down, *up}) == 1:
            yield "static", True
            return
        overflows = next(index for index, scale in enumerate(down) if scale < down[0])
        yield from _backoff_traits(subject, overflows, down)
        if _run(subject, [False], growth_factor=4.0, growth_interval=1).last == 2.0**17:
            yield "unsupported", frozenset({"factors"})
        yield from _bounds(subject, overflows)
        lower = _run(subject, [True], backoff_factor=0.7)
        if takes_any and lower.last != lower.scales[-1]:
            yield "scale_dtype", "float64"


def _backoff_traits(
    subject: Subject, overflows: int, down: Sequence[float]
) -> Iterator[tuple[str, Any]]:
    """Yield the delay or the hysteresis if a backoff takes more than one overflow, and what resets
    it.
    """
    late = _run(subject, [True, False, False, False]).scales
    if overflows > 1 and min(late) < late[0]:
        yield "delay", overflows - 1
    elif overflows > 1:
        few, reset = [True] * (overflows - 1), set[str]()
        for event, finite_steps in (("growth", 2), ("clean", 1)):
            steps = [*few, *[False] * finite_steps, True]
            *_, before, after = _run(subject, steps, growth_interval=2).scales
            if before == after:
                reset = {event}
        if down[overflows] == down[overflows + 1]:
            reset.add("backoff")
        yield "hysteresis", overflows
        yield "hysteresis_reset", frozenset(reset)


def _bounds(subject: Subject, overflows: int) -> Iterator[tuple[str, Any]]:
    """Yield the bounds of the scale after many overflows and after many growths."""
    low = _run(subject, [True] * 170 * overflows, backoff_factor=2.0**-16)
    if low.raised is not None:
        yield "gives_up", (type(low.raised),)
    if low.raised is not None or low.scales[-1] == low.scales[-2] > 0:
        yield "min_scale", low.last
    high = _run(subject, [False] * 130, init_scale=1.0, growth_interval=1)
    if high.scales[-1] == high.scales[-2] < LARGEST:
        yield "max_scale", high.last
