"""One example of a check: a fresh scaler with the words that the check asks for, and the story of
what was done to it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

from ampsim.core.formats import far_power
from ampsim.core.machine import Rule, round_to_float32
from ampsim.core.properties import History
from ampsim.testing.check import Check
from ampsim.testing.kit.subject import CONSTANTS, Scaler, Subject, Traits
from ampsim.testing.source import Words

TORCH = (Path(__file__).with_name("words.py"),)
WORDS = Words(*TORCH)
TRAITS = tuple(each.name for each in fields(Traits))
OPTIONAL = {  # what is drawn by this name is False without this feature
    "kernel": "fused",
    "unscales": "unscale_",
    "loads": "state_dict",
    "overrides": "override",
    "sets": "setters",
}
FITTED = {
    "new_scale": Traits.within,
    "factor": Traits.fitted,
}  # what is drawn by this name the scaler may not know
TOLD: dict[str, Callable[..., str]] = {  # words that return a scale -> the event that they are
    "loss_scale": lambda: "",
    "iterate": lambda found_inf: "inf" if found_inf else "clean",
    "iterate_all": lambda overflows: "+".join("inf" if each else "clean" for each in overflows),
}
SHOWN = 7  # scales that a story shows


class Example:
    """One example of a check: its attributes by the names of words are what a check is given, beside those of `WORDS`.

    Attributes:
        events: what was done, in words.
        scales: by which losses were multiplied.
        requested: the rule of the first scaler that was made.
        failing: the schedule of threads that failed.
    """

    def __init__(
        self, subject: Subject, check: Check, schedule: Mapping[int, int] | None = None
    ) -> None:
        self.subject, self.traits, self.check = subject, subject.traits, check
        self.schedule = schedule  # of threads: the one to run; None for all
        self.failing: Mapping[int, int] | None = None
        self.requested: Rule | None = None
        self.events: list[str] = []
        self.scales: list[float] = []
        self.drawn: Mapping[str, Any] = {}
        self._muted = False
        self._words: dict[str, Any] = {}

    def judge(self, **drawn: Any) -> None:
        """Ask the check; raise what it raises."""
        drawn |= {
            name: False
            for name, feature in OPTIONAL.items()
            if name in drawn and not self.has(feature)
        }
        drawn |= {
            name: fitted(self.traits, drawn[name])
            for name, fitted in FITTED.items()
            if name in drawn
        }
        self.drawn = drawn
        known = {name: derive(self.traits, **drawn) for name, derive in self.check.derives.items()}
        words = self.words(self.check.words)
        try:
            self.check.function(**words, **drawn, **known)
        except self.traits.gives_up:
            if not self._may_give_up():
                raise

    def _may_give_up(self) -> bool:
        """Return whether one more backoff leads to the floor, or below it, as far as the scale was seen."""
        rule, floor = self.requested or Rule(), self.traits.min_scale
        seen = [
            rule.init_scale,
            *self.scales,
        ]  # the last one was used before an update that backed off
        return floor is not None and seen[-1] * rule.backoff_factor ** min(len(seen), 2) <= floor

    def words(self, names: Sequence[str]) -> dict[str, Any]:
        """Return what these words mean in this example; what drives the scaler takes part in the story."""
        own = {name: getattr(self.traits, name) for name in TRAITS}
        own |= {
            "make": self.make,
            "construct": self.construct,
            "observe": self.observe,
            "example": self,
        }
        own |= {"repeats": self.repeats, "min_scale": self.floor}
        adapter = self.subject.words or WORDS
        self._words.update({**adapter.modules, **own})
        runs = ["run", "iterate", "loss_scale"] if {"observe", "run"} & {*names} else []
        for code in adapter.code([*names, *runs]):
            exec(code, self._words)  # noqa: S102  our own file
        for name, told in TOLD.items():
            if name in self._words:
                self._words[name] = self._noted(self._words[name], told)
        if self.traits.gives_up and "run" in self._words:
            self._words["run"] = self._run
        return {name: self._words[name] for name in names}

    def has(self, feature: str) -> bool:
        """Return whether the scaler has this one of `FEATURES`: it does not declare to be without."""
        return feature not in self.subject.lacking

    @property
    def floor(self) -> float | None:
        """The declared minimum as a loss sees it, in float32."""
        declared = self.traits.min_scale
        return None if declared is None else round_to_float32(declared)

    @property
    def repeats(self) -> int:
        """How many backoffs, or growths, move the scale where a rule asks for factors of 2^16: 16 if they are fixed."""
        return 1 if self.has("factors") else 16

    # ------------------------------------------------------------------------------------------------- words

    def make(self, *, enabled: bool = True, **constants: float) -> Scaler:
        """Make a fresh scaler of these constants, as far as it can follow them, and else of torch's."""
        rule = self.traits.possible(Rule(**constants))  # type: ignore[arg-type]
        return self._made(rule, enabled)

    def construct(self, **constants: float) -> Scaler:
        """Make a fresh scaler of exactly these constants, which it may refuse."""
        return self._made(Rule.unchecked(**constants))

    def _made(self, rule: Rule, enabled: bool = True) -> Scaler:
        self.requested = self.requested or rule
        scaler = self.subject.make(rule) if enabled else self.subject.make(rule, enabled=False)
        return Recorded(scaler, self.note)

    def observe(
        self, rule: Mapping[str, Any], found_inf: Sequence[bool]
    ) -> tuple[History, list[int | None]]:
        """Return the observed run of a fresh scaler, and its growth tracker after each update.

        It is run once, for all checks that ask about it. The delay is taken out.
        """
        seen: tuple[History, list[int | None]]
        lives, key = self.subject.lives, repr((rule, found_inf))
        if key not in lives:
            scaler, shown = self.make(**rule), list[int | None]()
            tracker = None if self.traits.delay else getattr(scaler, "_get_growth_tracker", None)

            def iterate(
                scaler: Scaler, flag: bool, once: Callable[..., float] = self._words["iterate"]
            ) -> float:
                used = once(scaler, flag)
                shown.append(None if tracker is None else int(tracker()))
                return used

            self._words["iterate"] = iterate
            scales = self._words["run"](scaler, found_inf)
            history = History(
                self.traits.follows(Rule(**rule)), found_inf[: len(scales) - 1], scales
            )
            lives[key] = (history, shown), self.requested, self.events, self.scales
        seen, self.requested, self.events, self.scales = lives[key]
        return seen

    # ------------------------------------------------------------------------------------------------- the story

    def note(self, event: str) -> None:
        """Add an event to the story, unless it is part of one."""
        if not self._muted:
            self.events.append(event)

    def _noted(self, word: Callable[..., float], told: Callable[..., str]) -> Callable[..., float]:
        """Return a word as it is, which is one event of the story, and the scale that it returns another one."""

        def noted(scaler: Scaler, *args: Any) -> float:
            if event := told(*args):
                self.note(event)
            muted, self._muted = self._muted, True
            try:
                scale = word(scaler, *args)
            finally:
                self._muted = muted
            self.scales += [scale] if self.scales[-1:] != [scale] else []
            return scale

        return noted

    def _run(self, scaler: Scaler, found_inf: Sequence[bool]) -> list[float]:
        """Run a scaler that may give up: the run then ends with the scale of that update.

        Where a check asks for the run itself, of a scaler with torch's words, the floor under that scale is its end.
        """
        used = []
        try:
            for flag in [*found_inf, *[False] * self.traits.delay]:
                used.append(self._words["loss_scale"](scaler))
                self._words["iterate"](scaler, flag)
            used.append(self._words["loss_scale"](scaler))
        except self.traits.gives_up:
            if "run" in self.check.words and self.subject.words is None and self._may_give_up():
                used.append(self.floor)
        return used[self.traits.delay :]

    def story(self) -> list[tuple[str, str]]:
        """Return what was requested, drawn and done, as short as can be: lines of (label, text)."""
        rule = self.requested or Rule()
        lines = [
            (
                "scaler",
                ", ".join(f"{name}={readable(repr(getattr(rule, name)))}" for name in CONSTANTS),
            )
        ]
        told = {
            name: value
            for name, value in self.drawn.items()
            if not isinstance(value, list | dict | int) or value is True
        }
        lines.append(
            ("with", readable(", ".join(f"{name}={value!r}" for name, value in told.items())))
        )
        scales = [readable(repr(each)) for each in self.scales]
        if len(scales) > SHOWN:
            scales[SHOWN // 2 : -(SHOWN // 2)] = ["..."]
        return [*lines, ("history", shorten(self.events)), ("scale", " -> ".join(scales))]


class Recorded:
    """A scaler as it is, whose calls are noted."""

    def __init__(self, scaler: Scaler, note: Callable[[str], None]) -> None:
        self.__dict__.update(_scaler=scaler, _note=note)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["_scaler"], name)
        if name.startswith(("_", "get_")) or not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            shown = ", ".join(repr(each) for each in args if isinstance(each, float | int))
            self._note(f"{name}({shown})")
            return found(*args, **kwargs)

        return call

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._scaler, name, value)

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
        return itself, (self._scaler,)


def itself(scaler: Scaler) -> Scaler:
    """Return what was pickled in a record's place."""
    return scaler


def shorten(events: Sequence[str]) -> str:
    """Write equal events in a row as one: ``inf x 166, clean``."""
    runs = [(event, len(list(run))) for event, run in groupby(events)]
    return ", ".join(event if times == 1 else f"{event} x {times}" for event, times in runs)


def readable(text: str) -> str:
    """Write the numbers of a text as one reads them: ``2**-128`` for a power of two that is far from 1."""
    return re.sub(
        r"\d+(?:\.\d+)?e[-+]\d+|\d{8,}\.0\b",
        lambda found: far_power(float(found[0]), 20) or found[0],
        text,
    )
