"""Suggest `Traits` from the behavior of a scaler: as the hint of a failure, and for a new scaler.

A hint is a declaration under which the failed check passes. It does not say that the difference is
intended. Only what is observed is proposed: that a check fails is no sign that its feature is
missing.
"""

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ampsim.core.machine import round_to_float32
from ampsim.testing.check import Check, Story
from ampsim.testing.scaler_checks.adapter import Scales
from ampsim.testing.scaler_checks.example import example_of
from ampsim.testing.scaler_checks.subject import Subject
from ampsim.testing.scaler_checks.traits import FEATURES, Traits, shown

SMALLEST = 2.0**-126  # the smallest scale without a min_scale: normal in float32
LARGEST = 2.0**127  # the largest scale without a max_scale
ODD = 1700.0  # not a power of two
DECLARED = "missing_features_are_declared"
UNOBSERVED = (
    "float16",
    "misuse_errors",
    "step_value",
)  # features that only a check can decide
SENTENCES = {  # what a trait means
    "min_scale": "no backoff goes below it",
    "max_scale": "no growth goes above it",
    "scale_dtype": "precision in which the scale is kept",
    "hysteresis": "overflows that a backoff takes",
    "hysteresis_reset": "what restarts the count of overflows",
    "powers_of_two": "scales and factors are rounded to powers of two",
    "static": "the scale does not change",
    "delay": "updates between the computation of a scale and its use",
    "supported": "features that are checked",
    "skips": "optimizers that an overflow of one optimizer skips",
    "gives_up": "raised by update() instead of going below min_scale",
}
Changes = Mapping[str, Any]  # of traits
Passes = Callable[[Subject], bool]


def suggestion(
    check: Any, subject: Subject, passes: Passes, checks: Iterable[Check]
) -> Story:
    """Return the hint of a failure as lines (label, text): traits to declare, or an expected
    failure.

    Args:
        check: The `ScalerCheck` that failed.
        subject: The scaler under test.
        passes: Returns whether the check passes or is skipped for a scaler with other traits.
        checks: All checks, of which the hint names those that it would skip.
    """
    if changes := excusing_traits(check, subject, passes):
        return [("hint", hint(subject, changes))]
    if known := subject.known_failure(check.name):
        return [("known", known)]
    for feature in UNOBSERVED:
        changes = {"unsupported": frozenset({feature})}
        is_settled = feature in (*check.needs, *check.adapts)
        if is_settled and passes(_declared(subject, changes)):
            skipped = [each.name for each in checks if feature in each.needs]
            text = hint(subject, changes)
            return [("hint", f"{text}; this skips {', '.join(skipped)}")]
    return []


def excusing_traits(check: Check, subject: Subject, passes: Passes) -> Changes:
    """Return the fewest observed traits under which a failed check passes or is skipped; {} for
    none.
    """
    if check.name == DECLARED:
        return {"unsupported": frozenset(subject.missing)}
    changes = dict(observed_traits(subject))
    if check.name == "optimizers_share_one_scale":
        changes["skips"] = "all"
    if not changes or not passes(_declared(subject, changes)):
        return {}
    for name, value in _single(changes):
        fewer = _without(changes, name, value)
        if passes(_declared(subject, fewer)):
            changes = fewer
    return changes


def _single(changes: Changes) -> list[tuple[str, Any]]:
    """Return each trait, and each unsupported feature, by itself."""
    traits = [pair for pair in changes.items() if pair[0] != "unsupported"]
    features = sorted(changes.get("unsupported", ()))
    return [*traits, *(("unsupported", feature) for feature in features)]


def _without(changes: Changes, name: str, value: Any) -> dict[str, Any]:
    """Return the changes without a trait, or without an unsupported feature."""
    fewer = dict(changes)
    features = fewer.pop(name)
    if name == "unsupported" and len(features) > 1:
        fewer[name] = features - {value}
    return fewer


def as_observed(subject: Subject) -> Subject:
    """Return the scaler with the traits that it shows."""
    return _declared(subject, observed_traits(subject))


def _declared(subject: Subject, changes: Changes) -> Subject:
    """Return the scaler with these additional traits; the same one each time, as its runs are kept."""
    key = f"declared {sorted(changes.items())}"
    if key not in subject.cache:
        subject.cache[key] = subject.declared(**changes)
    return subject.cache[key]  # type: ignore[no-any-return]


def hint(subject: Subject, changes: Changes) -> str:
    """Write the declaration of traits, for Python and for the shell."""
    text = f"if intentional, declare it with Traits({written(changes)})"
    options = shlex.join(subject.declared(**changes).traits.as_options())
    shell = "" if "gives_up" in changes else f", or in the shell: {options}"
    return text + shell


def written(changes: Changes) -> str:
    """Write traits as the arguments of `Traits`."""
    arguments = [f"{name}={_written(value)}" for name, value in changes.items()]
    return ", ".join(arguments)


def _written(value: Any) -> str:
    if isinstance(value, tuple):  # of exceptions
        names = [kind.__name__ for kind in value]
        return f"({', '.join(names)},)"
    if value and isinstance(value, frozenset):
        return repr([*sorted(value)]).replace("[", "{").replace("]", "}")
    return shown(value) if isinstance(value, float) else repr(value)


def questions(subject: Subject, declared: Traits) -> Iterator[str]:
    """Yield a sentence for each trait and unsupported feature that are proposed for a scaler."""
    for name, value in declared.differences().items():
        if name in SENTENCES:
            yield f"{name}={_written(value)}: {SENTENCES[name]}: intended?"
    for name in sorted(declared.unsupported):
        lack = subject.missing.get(name, FEATURES[name])
        yield f"{name}: not supported ({lack}): intended?"


# ---------------------------------------------------------------------------------- observation


def observed_traits(subject: Subject) -> Changes:
    """Return the traits that a scaler shows and that are not declared; each scaler is observed
    once.
    """
    if "observed" not in subject.cache:
        shown = dict[str, Any]()
        with suppress(Exception):
            shown.update(_observed(subject))
        subject.cache["observed"] = shown
    declared = vars(subject.traits)
    observed = dict(subject.cache["observed"])
    lacks = observed.pop("unsupported", frozenset()) - subject.unsupported.keys()
    changes = {
        name: value for name, value in observed.items() if declared[name] != value
    }
    return {**changes, "unsupported": lacks} if lacks else changes


def _scales(subject: Subject, found_inf: Sequence[bool], **constants: float) -> Scales:
    """Return the scale before each update and, more precisely, the last one from get_scale()."""
    example = example_of(subject)
    scaler = example.make(**constants)
    scales = example.iterate_each(scaler, found_inf)
    last = example.loss_scale(scaler)
    kept = float(scaler.get_scale())
    return [*scales, kept if round_to_float32(kept) == last else last]


def _observed(subject: Subject) -> Iterator[tuple[str, Any]]:
    takes_any = False
    with suppress(Exception):
        takes_any = _scales(subject, [], init_scale=ODD) == [ODD]
    if not takes_any and _scales(subject, [], init_scale=1024.0) == [1024.0]:
        yield "powers_of_two", True
    down = _scales(subject, [True] * 9, growth_interval=1)
    up = _scales(subject, [False] * 9, growth_interval=1)
    if len({*down, *up}) == 1:
        yield "static", True
        return
    overflows = next(index for index, scale in enumerate(down) if scale < down[0])
    if overflows > 1:
        yield from _patience(subject, overflows, down)
    yield "unsupported", frozenset(_lacking(subject, overflows))
    yield from _bounds(subject, overflows)
    lower = _scales(subject, [True], backoff_factor=0.7)[-1]
    if takes_any and lower != round_to_float32(lower):
        yield "scale_dtype", "float64"


def _lacking(subject: Subject, overflows: int) -> Iterator[str]:
    """Yield the optional features that a scaler shows not to have."""
    up = _scales(subject, [False], growth_factor=4.0, growth_interval=1)
    down = _scales(subject, [True] * overflows, backoff_factor=0.25)
    if up[-1] == 2.0**17 or down[-1] == 2.0**15:
        yield "factors"
    if "state_dict" not in subject.unsupported and not _saves_constants(subject):
        yield "saved_constants"


def _saves_constants(subject: Subject) -> bool:
    """Return whether the state dict of a new scaler differs with each of its constants."""
    make = example_of(subject).make
    saved = make().state_dict()
    others = {"growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 3}
    if "factors" in subject.unsupported:
        others = {"growth_interval": 3}
    each = [make(**{name: value}).state_dict() for name, value in others.items()]
    return all(repr(other) != repr(saved) for other in each)


def _patience(
    subject: Subject, overflows: int, down: Sequence[float]
) -> Iterator[tuple[str, Any]]:
    """Yield the delay or the hysteresis of a scaler whose backoff takes more than one overflow, and
    what resets it.
    """
    late = _scales(subject, [True, False, False, False])
    if min(late) < late[0]:
        yield "delay", overflows - 1
        return
    few = [True] * (overflows - 1)
    reset = set[str]()
    for event, finite_steps in (("growth", 2), ("clean", 1)):
        steps = [*few, *[False] * finite_steps, True]
        *_, before, after = _scales(subject, steps, growth_interval=2)
        if before == after:
            reset = {event}
    if down[overflows] == down[overflows + 1]:
        reset.add("backoff")
    yield "hysteresis", overflows
    yield "hysteresis_reset", frozenset(reset)


def _bounds(subject: Subject, overflows: int) -> Iterator[tuple[str, Any]]:
    """Yield the bounds of the scale after many overflows and after many growths."""
    example = example_of(subject)
    scaler = example.make(backoff_factor=2.0**-16)
    low = [math.inf, 0.0]
    try:
        for _ in range(170 * overflows):
            low = [low[-1], example.iterate(scaler, True)]
    except Exception as error:
        yield "gives_up", (type(error),)
        yield "min_scale", example.loss_scale(scaler)
    else:
        if low[0] == low[1] > SMALLEST:
            yield "min_scale", low[1]
    # A scale that ends where it began has no bound: it does not grow.
    *_, before, high = _scales(
        subject, [False] * 130, init_scale=1.0, growth_interval=1
    )
    again = _scales(subject, [False] * 130, init_scale=2.0, growth_interval=1)
    if before == high == again[-1] < LARGEST:
        yield "max_scale", high


def propose(
    subject: Subject, checks: Sequence[Any], passes: Callable[[Any, Subject], bool]
) -> Subject:
    """Return the scaler with the traits that it shows.

    Bounds and missing features are proposed if they are observed, other traits if they also let a
    check pass that fails without them. Whether the difference is intended remains to be decided.

    Args:
        subject: Scaler to observe.
        checks: Checks to run.
        passes: Returns whether a check passes or is skipped for a scaler.

    Returns:
        Subject: The scaler with additional traits.
    """
    declared = subject.declared(unsupported=frozenset(subject.missing))
    facts = ("min_scale", "max_scale", "unsupported")
    observed = observed_traits(declared)
    declared = declared.declared(
        **{name: observed[name] for name in facts if name in observed}
    )
    for check in checks:
        if not passes(check, declared):
            changes = excusing_traits(check, declared, partial(passes, check))
            declared = declared.declared(**changes)
    return declared
