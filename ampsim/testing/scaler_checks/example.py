"""One example of a check: an adapter that records what was done, for the report of a failure."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any

from ampsim.core.formats import far_power
from ampsim.core.machine import Rule, round_to_float32
from ampsim.core.properties import History
from ampsim.testing.check import Story
from ampsim.testing.construction import CONSTANTS
from ampsim.testing.scaler_checks import reference
from ampsim.testing.scaler_checks.adapter import ScalerAdapter, Scales
from ampsim.testing.scaler_checks.subject import Subject

SHOWN = 7  # scales that a story shows


class Example(ScalerAdapter):
    """An adapter that records one example. `example_of` puts it before the class of the adapter.

    Attributes:
        subject: The scaler under test.
        requested: Rule of the first scaler that was made.
        answers: Values that the reference returned, by method; a reproducer contains them.
        events: What was done, in words.
        scales: Factors by which losses were multiplied.
    """

    def __init__(self, subject: Subject) -> None:
        traits = replace(subject.traits, unsupported=frozenset(subject.unsupported))
        if traits.min_scale is not None:  # as a loss sees it
            traits = replace(traits, min_scale=round_to_float32(traits.min_scale))
        super().__init__(self._make, traits)
        self.construct = self._construct
        self.subject = subject
        self.requested: Rule | None = None
        self.answers: dict[str, Any] = {}
        self.events: list[str] = []
        self.scales: Scales = []

    def _make(self, *, enabled: bool = True, **constants: float) -> Any:
        rule = self.subject.traits.possible(Rule(**constants))  # type: ignore[arg-type]
        self.requested = self.requested or rule
        options = {} if enabled else {"enabled": False}
        return self.subject.make(rule, **options)

    def _construct(self, **constants: float) -> Any:
        rule = Rule.unchecked(**constants)
        self.requested = self.requested or rule
        return self.subject.make(rule)

    # -------------------------------------------------------------------------------- recording

    def _used(self, scale: float) -> float:
        if self.scales[-1:] != [scale]:
            self.scales.append(scale)
        return scale

    def loss_scale(self, scaler: Any) -> float:
        return self._used(super().loss_scale(scaler))

    def iterate(
        self, scaler: Any, *found_inf: bool, optimizers: Sequence[Any] = ()
    ) -> float:
        events = ["inf" if overflows else "clean" for overflows in found_inf]
        self.events.append("+".join(events))
        scale = super().iterate(scaler, *found_inf, optimizers=optimizers)
        return self._used(scale)

    def run(self, scaler: Any, found_inf: Sequence[bool]) -> Scales:
        """Run a scaler; where torch's calls lead to its minimum and it gives up, that is the last
        scale.
        """
        used = self._run(scaler, found_inf)
        is_cut = len(used) <= len(found_inf)
        if is_cut and self.subject.adapter is ScalerAdapter and self.may_give_up():
            used.append(self.traits.min_scale)
        return used

    def _run(self, scaler: Any, found_inf: Sequence[bool]) -> Scales:
        """Run a scaler; if it gives up, the run ends with the scale of that update."""
        if not self.traits.gives_up:
            return super().run(scaler, found_inf)
        used = list[float]()
        delay = self.traits.delay
        with suppress(*self.traits.gives_up):
            for overflows in [*found_inf, *[False] * delay]:
                used.append(self.loss_scale(scaler))
                self.iterate(scaler, overflows)
            used.append(self.loss_scale(scaler))
        return used[delay:]

    def may_give_up(self) -> bool:
        """Return whether one more backoff leads to the minimum scale or below, as far as the scale
        was seen.
        """
        rule = self.requested or Rule()
        low = self.traits.min_scale
        # An update may have backed off since the last one.
        scales = [rule.init_scale, *self.scales]
        backoff = rule.backoff_factor ** min(len(scales), 2)
        return low is not None and scales[-1] * backoff <= low

    def expected_scales(self, *args: Any, **kwargs: Any) -> Scales:
        self.answers["expected_scales"] = reference.scales(self.traits, *args, **kwargs)
        return list(self.answers["expected_scales"])

    def expected_calls(self, *args: Any, **kwargs: Any) -> Sequence[Any]:
        self.answers["expected_calls"] = reference.calls(self.traits, *args, **kwargs)
        return list(self.answers["expected_calls"])

    def observe(self, rule: Mapping[str, Any], found_inf: Sequence[bool]) -> History:
        """Return the run of a fresh scaler without its delay.

        It runs once, for all checks of runs.
        """
        cache = self.subject.cache
        key = repr((rule, found_inf))
        if key not in cache:
            scaler = self.make(**rule)
            scales = self._run(scaler, found_inf)
            cache[key] = scales, self.requested, self.events, self.scales
        scales, self.requested, self.events, self.scales = cache[key]
        follows = self.subject.traits.follows(Rule(**rule))
        return History(follows, found_inf[: len(scales) - 1], scales)

    # ------------------------------------------------------------------------------------- story

    def story(self, values: Mapping[str, Any]) -> Story:
        """Return what was requested, generated, and done, as lines of (label, text)."""
        rule = self.requested or Rule()
        constants = {name: getattr(rule, name) for name in CONSTANTS}
        told = dict[str, object]()
        for name, value in values.items():
            if value is True or not isinstance(value, list | dict | int):
                told[name] = value
        events = self.events
        if "calls" in values:  # of two optimizers, by number
            events = [f"{event} {number}" for event, number in values["calls"]]
        scales = [readable(repr(scale)) for scale in self.scales]
        if len(scales) > SHOWN:
            scales[SHOWN // 2 : -(SHOWN // 2)] = ["..."]
        return [
            ("scaler", listed(constants)),
            ("with", listed(told)),
            ("history", shorten(events)),
            ("scale", " -> ".join(scales)),
        ]


def example_of(subject: Subject) -> Example:
    """Return a new example, driven by the subject's adapter."""
    kind = type("Example", (Example, subject.adapter), {})
    made: Example = kind(subject)
    return made


def shorten(events: Sequence[str]) -> str:
    """Write equal events in a row as one: ``inf x 166, clean``."""
    runs = []
    for event, run in groupby(events):
        times = len([*run])
        runs.append(event if times == 1 else f"{event} x {times}")
    return ", ".join(runs)


def listed(values: Mapping[str, Any]) -> str:
    """Write values as arguments: ``scale=2**-128, fused=True``."""
    arguments = [f"{name}={value!r}" for name, value in values.items()]
    return readable(", ".join(arguments))


def readable(text: str) -> str:
    """Write numbers as a person reads them: ``2**-128`` for a power of two that is far from 1."""
    number = r"\d+(?:\.\d+)?e[-+]\d+|\d{8,}\.0\b"

    def power(found: re.Match[str]) -> str:
        return far_power(float(found[0]), 20) or found[0]

    return re.sub(number, power, text)
