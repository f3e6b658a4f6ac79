"""What a scaler that broke a check may have promised: read from what it does, and the check asked again under it."""

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

TOP = 2.0**127  # where growths end that have no max_scale below float32's
ODD = 1700.0  # no power of two
CALLS = {
    "setters": "set_",
    "state_dict": "state_dict",
    "unscale_": "unscale_",
    "pickle": "pickle",
    "override": "update() takes",
}  # in an error's text
SHOWN = {
    "float16": r"\btaken",
    "saved_constants": r"^after resuming",
    "skip_report": r"has no last_step",
}  # in a failure's text
EXPECTED = "expected_failures=known_failures.TORCH, in the shell --expect ampsim.testing.known_failures:TORCH"
LACKING = (AttributeError, NotImplementedError, TypeError)
Changes = Mapping[str, Any]  # of traits


def choice(
    check: Check, subject: Subject, seen: BaseException, examples: int
) -> list[tuple[str, str]]:
    """Return, as lines of a story, what to declare if what was seen is meant; none if nothing of
    it lets the check hold.

    Args:
        check: the one that is broken.
        subject: the scaler that breaks it.
        seen: what was raised by the shortest example.
        examples: that the check is asked on again.
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
            return [("choice", _told(subject, each))]
    if len(found) < 2 or not _holds(check, subject, found, examples):
        known = f"torch's own: {TORCH.get(check.name)}; {EXPECTED}"
        return [("known", known)] if subject.is_torchs and check.name in TORCH else []
    for name in [*found]:
        fewer = {each: value for each, value in found.items() if each != name}
        found = fewer if _holds(check, subject, fewer, examples) else found
    return [("choice", _told(subject, found))]


class Seen(NamedTuple):
    """A fresh scaler behind some updates, the scales that it used before each of them and after, and what it raised."""

    scaler: Scaler
    scales: list[float]
    raised: Exception | None

    @property
    def last(self) -> float:
        """The last scale as the scaler itself says it, which may be wider than a loss sees it."""
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
    """Yield what a scaler is seen to do as a trait has it: the trait's name, and its value."""
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
    """Yield why so many overflows go by before the scale falls, if it is more than one, and what begins them anew."""
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
    """Yield where overflows without end lead the scale, and where growths do."""
    low = used([True] * 170 * patience, backoff_factor=2.0**-16)
    if low.raised is not None:
        yield "gives_up", (type(low.raised),)
    if low.raised is not None or low.scales[-1] == low.scales[-2] > 0:
        yield "min_scale", low.last
    high = used([False] * 130, init_scale=1.0, growth_interval=1)
    if high.scales[-1] == high.scales[-2] < TOP:
        yield "max_scale", high.last


def _lacks(subject: Subject, feature: str, seen: BaseException) -> bool:
    """Return whether a failure shows that a scaler does not have a feature: it has no such call, or refuses nothing."""
    if feature == "refusals":  # a late step that is taken shows in its gradient
        return not subject.is_torchs and bool(
            re.search(r"\btaken|raised None|optimizer 1 saw", str(seen))
        )
    if feature in SHOWN:
        return bool(re.search(SHOWN[feature], str(seen)))
    return isinstance(seen, LACKING) and feature in CALLS and CALLS[feature] in str(seen)


def _declared(subject: Subject, changes: Changes) -> Subject:
    """Return the scaler as one that declares these changes of its traits as well, always the same object."""
    key = f"declared {sorted(changes.items())}"
    if key not in subject.lives:
        unsupported = subject.traits.unsupported | changes.get("unsupported", frozenset())
        traits = replace(subject.traits, **{**changes, "unsupported": unsupported})
        subject.lives[key] = Subject(subject.make, traits, subject.name, subject.words)
    found: Subject = subject.lives[key]
    return found


def _holds(check: Check, subject: Subject, changes: Changes, examples: int) -> bool:
    """Return whether a check holds, or is not asked, of a scaler that declares these changes."""
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
    """Write what to declare, in Python and in the shell."""
    written = ", ".join(f"{name}={_written(value)}" for name, value in changes.items())
    options = " ".join(_declared(subject, changes).traits.as_options())
    text = f"if this is meant, declare it, and it is no finding: Traits({written})"
    in_python_alone = "gives_up" in changes or len(changes.get("hysteresis_reset", "1")) != 1
    return readable(text if in_python_alone else f"{text}, in the shell {options}")


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(each.__name__ for each in value)},)"
    return (
        f"{{{', '.join(map(repr, sorted(value)))}}}"
        if value and isinstance(value, frozenset)
        else repr(value)
    )
