"""Suggest the `Traits` under which a failed check passes, from the observed behavior of the scaler."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from ampsim.core.machine import round_to_float32
from ampsim.testing.check import Check
from ampsim.testing.examples import drawn_by
from ampsim.testing.kit.example import OPTIONAL, Example, readable
from ampsim.testing.kit.subject import Scaler, Subject
from ampsim.testing.known_failures import TORCH

TOP = 2.0**127  # the largest scale without a max_scale
ODD = 1700.0  # not a power of two
CALLS = {
    "setters": "set_",
    "state_dict": "state_dict",
    "unscale_": "unscale_",
    "pickle": "pickle",
    "override": "update() takes",
}  # in an error's text
SHOWN = {
    "float16": r"\baccepted",
    "saved_constants": r"^after resuming",
    "skip_report": r"has no last_step",
}  # in a failure's text
EXPECTED = (
    "pass expected_failures=known_failures.TORCH, or --expect ampsim.testing.known_failures:TORCH"
)
LACKING = (AttributeError, NotImplementedError, TypeError)
Changes = Mapping[str, Any]  # of traits


def choice(
    check: Check, subject: Subject, seen: BaseException, examples: int
) -> list[tuple[str, str]]:
    """Return the hint of a failure as lines (label, text): the traits to declare, or [] for none.

    Args:
        check: the check that failed.
        subject: the scaler under test.
        seen: the exception of the minimal example.
        examples: maximum number of examples of each new run.
    """
    if "habits" not in subject.lives:
        subject.lives["habits"] = dict(_habits(partial(_used, subject, check)))
    found = subject.lives["habits"] | ({"skips": "all"} if "skips" in check.words else {})
    found = {name: value for name, value in found.items() if getattr(subject.traits, name) != value}
    asked = {*check.needs, *OPTIONAL.values(), "saved_constants"}
    if lacks := [each for each in asked if _lacks(subject, each, seen)]:
        found["unsupported"] = found.get("unsupported", frozenset()) | {*lacks}
    for each in ({name: value} for name, value in found.items()):
        if _holds(check, subject, each, examples):
            return [("hint", _told(subject, each))]
    if len(found) < 2 or not _holds(check, subject, found, examples):
        known = f"torch.amp.GradScaler fails it too ({TORCH.get(check.name)}); {EXPECTED}"
        return [("known", known)] if subject.is_torchs and check.name in TORCH else []
    for name in [*found]:
        fewer = {each: value for each, value in found.items() if each != name}
        found = fewer if _holds(check, subject, fewer, examples) else found
    return [("hint", _told(subject, found))]


class Seen(NamedTuple):
    """A scaler after some updates, its scale before each update and at the end, and its exception."""

    scaler: Scaler
    scales: list[float]
    raised: Exception | None

    @property
    def last(self) -> float:
        """The last scale from get_scale(), which may have more bits than the scale of a loss."""
        kept = float(self.scaler.get_scale())
        return kept if round_to_float32(kept) == self.scales[-1] else self.scales[-1]


def _used(subject: Subject, check: Check, found_inf: Sequence[bool], **constants: float) -> Seen:
    words = Example(subject, check).words(["make", "iterate", "loss_scale"])
    scaler, scales, raised = words["make"](**constants), list[float](), None
    try:
        for each in found_inf:
            scales.append(words["iterate"](scaler, each))
    except Exception as error:
        raised = error
    return Seen(scaler, [*scales, words["loss_scale"](scaler)], raised)


def _habits(used: Callable[..., Seen]) -> Iterator[tuple[str, Any]]:
    """Yield the observed traits of a scaler: name and value."""
    is_odd = False
    with suppress(Exception):
        is_odd = used([], init_scale=ODD).scales == [ODD]
    with suppress(Exception):
        if not is_odd and used([], init_scale=1024.0).scales == [1024.0]:
            yield "powers_of_two", True
        down, up = (used([bad] * 9, growth_interval=1).scales for bad in (True, False))
        if len({*down, *up}) == 1:
            yield "static", True
            return
        patience = next(index for index, scale in enumerate(down) if scale < down[0])
        yield from _patience(used, patience, down)
        if used([False], growth_factor=4.0, growth_interval=1).last == 2.0**17:
            yield "unsupported", frozenset({"factors"})
        yield from _ends(used, patience)
        lower = used([True], backoff_factor=0.7)
        if is_odd and lower.last != lower.scales[-1]:
            yield "scale_dtype", "float64"


def _patience(
    used: Callable[..., Seen], patience: int, down: Sequence[float]
) -> Iterator[tuple[str, Any]]:
    """Yield the delay or hysteresis if a backoff takes more than one overflow, and what resets the hysteresis."""
    late = used([True, False, False, False]).scales
    if patience > 1 and min(late) < late[0]:
        yield "delay", patience - 1
    elif patience > 1:
        few = [True] * (patience - 1)
        clean, grown = (used([*few, *[False] * n, True], growth_interval=2).scales for n in (1, 2))
        reset = (
            {"clean"}
            if clean[-1] == clean[-2]
            else {"growth"}
            if grown[-1] == grown[-2]
            else set[str]()
        )
        yield "hysteresis", patience
        again = {"backoff"} if down[patience] == down[patience + 1] else set[str]()
        yield "hysteresis_reset", frozenset(reset | again)


def _ends(used: Callable[..., Seen], patience: int) -> Iterator[tuple[str, Any]]:
    """Yield the bounds of the scale after many overflows and after many growths."""
    low = used([True] * 170 * patience, backoff_factor=2.0**-16)
    if low.raised is not None:
        yield "gives_up", (type(low.raised),)
    if low.raised is not None or low.scales[-1] == low.scales[-2] > 0:
        yield "min_scale", low.last
    high = used([False] * 130, init_scale=1.0, growth_interval=1)
    if high.scales[-1] == high.scales[-2] < TOP:
        yield "max_scale", high.last


def _lacks(subject: Subject, feature: str, seen: BaseException) -> bool:
    """Return whether a failure shows that a scaler lacks a feature: a call is missing, or nothing raises."""
    if feature == "refusals":  # a late step that is accepted shows in its gradient
        return not subject.is_torchs and bool(
            re.search(r"\baccepted|raised None|optimizer 1 saw", str(seen))
        )
    if feature in SHOWN:
        return bool(re.search(SHOWN[feature], str(seen)))
    return isinstance(seen, LACKING) and feature in CALLS and CALLS[feature] in str(seen)


def _declared(subject: Subject, changes: Changes) -> Subject:
    """Return the scaler with these additional traits, cached."""
    key = f"declared {sorted(changes.items())}"
    if key not in subject.lives:
        unsupported = subject.traits.unsupported | changes.get("unsupported", frozenset())
        traits = replace(subject.traits, **{**changes, "unsupported": unsupported})
        subject.lives[key] = Subject(subject.make, traits, subject.name, subject.words)
    found: Subject = subject.lives[key]
    return found


def _holds(check: Check, subject: Subject, changes: Changes, examples: int) -> bool:
    """Return whether a check passes or is skipped for a scaler with these additional traits."""
    declared = _declared(subject, changes)
    if declared.lacking.intersection(check.needs):
        return True
    drawn = drawn_by(tuple(check.draws.items()), examples).values() if check.draws else [{}]
    with suppress(Exception, SystemExit):
        for each in [*check.found, *drawn, *check.last]:
            Example(declared, check).judge(**each)
        return True
    return False


def _told(subject: Subject, changes: Changes) -> str:
    """Return the hint, for Python and for the shell."""
    written = ", ".join(f"{name}={_written(value)}" for name, value in changes.items())
    options = " ".join(_declared(subject, changes).traits.as_options())
    text = f"if intentional, declare it with Traits({written})"
    in_python_alone = "gives_up" in changes or len(changes.get("hysteresis_reset", "1")) != 1
    return readable(text if in_python_alone else f"{text}, or in the shell: {options}")


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(each.__name__ for each in value)},)"
    return (
        f"{{{', '.join(map(repr, sorted(value)))}}}"
        if value and isinstance(value, frozenset)
        else repr(value)
    )
