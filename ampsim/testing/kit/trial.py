"""One example of a check: a scaler, optimizers with real parameters, and the story of what was done to them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import groupby
from typing import TYPE_CHECKING, NoReturn

from ampsim.core.laws import History, Step
from ampsim.core.machine import Rule, init, round_to_float32, update
from ampsim.core.torch_model.refusals import Refusal
from ampsim.testing.kit.result import BrokenError
from ampsim.testing.kit.subject import CONSTANTS, Scaler, Subject

if TYPE_CHECKING or find_spec("torch"):
    from ampsim.testing.kit.bench import Bench as Bench
    from ampsim.testing.kit.bench import bits as bits
    from ampsim.testing.kit.bench import loss as loss
else:
    from ampsim.testing.kit.plain import Bench, bits, loss

RULE = Rule(growth_interval=3)  # where a check does not draw one
SHOWN = 7  # scales that a story shows


class Trial:
    """One example of a check: it starts a scaler, drives it, and fails with what was seen."""

    def __init__(self, subject: Subject, schedule: Mapping[int, int] | None = None) -> None:
        self.subject, self.traits = subject, subject.traits
        self.schedule = schedule  # of threads: the one to run; None for all
        self.failing: Mapping[int, int] | None = None  # the one that failed
        self.requested = self.rule = RULE
        self.state = init(RULE)  # of the reference machine, for `follow`
        self.scaler: Scaler = None
        self.benches: tuple[Bench, ...] = ()
        self.events: list[str] = []
        self.scales: list[float] = []

    def has(self, feature: str) -> bool:
        """Return whether the scaler has this one of `FEATURES`: it does not declare to be without."""
        return feature not in self.subject.lacking

    @property
    def steps_per_16_binades(self) -> int:
        """How many backoffs, or growths, move the scale where a rule asks for factors of 2^16: 16 if they are fixed."""
        return 1 if self.has("factors") else 16

    # -------------------------------------------------------------------------------------------- driving

    def start(self, rule: Rule = RULE, *benches: Bench) -> Scaler:
        """Make a fresh scaler for `rule`. What it is to follow, traits included, becomes `self.rule`."""
        self.requested, self.rule = self.traits.possible(rule), self.traits.follows(rule)
        self.state, self.benches = init(self.rule), benches or (Bench(),)
        self.scaler = self.subject.make(self.requested)
        return self.scaler

    def loss_scale(self) -> float:
        """Return what the scaler multiplies a loss by, here and now."""
        scale = float(self.scaler.scale(loss()))
        self.scales += [scale] if self.scales[-1:] != [scale] else []
        return scale

    def iterate(self, *overflows: bool, bad: float = math.inf) -> float:
        """Run one iteration in which optimizer i has a `bad` gradient if ``overflows[i]``; return the scale it used."""
        scale = self.loss_scale()
        flags = overflows or (False,) * len(self.benches)
        self.log_event("+".join(str(bad) if flag else "clean" for flag in flags))
        for bench, flag in zip(self.benches, flags, strict=True):
            bench.put(scale, bad if flag else None)
        for bench in self.benches:
            self.scaler.step(bench.optimizer)
        self.scaler.update()
        return scale

    def overflow(self) -> None:
        """Run one iteration in which every optimizer overflows; a scaler may give up."""
        with suppress(*self.traits.gives_up):
            self.iterate(*[True] * len(self.benches))

    def follow(self, *overflows: bool) -> None:
        """Run one iteration, and fail unless the scale it used is the reference machine's."""
        self.require_scale(self.iterate(*overflows))
        self.state = update(self.rule, self.state, any(overflows))

    def require_scale(self, scale: float) -> None:
        """Fail unless a scale is the reference machine's, to the last bit."""
        expected = self.state.scale
        self.require(
            self.seen(scale) == self.seen(expected),
            f"the scale is {format_number(scale)}, expected {format_number(expected)}",
        )

    def seen(self, scale: float) -> float:
        """Return a scale as a float32 loss sees it; unlike a double, a scale kept in float32 is to be one already."""
        return scale if self.traits.scale_dtype == "float32" else round_to_float32(scale)

    def follows_an_overflow(self) -> None:
        """Fail unless the scale after an update in which one overflow was found is the reference machine's."""
        self.state = update(self.rule, self.state, found_inf=True)
        if not self.traits.delay:
            self.require_scale(self.loss_scale())

    def steps(self, *overflows: bool, bad: float = math.inf) -> list[Step]:
        """Run one iteration, and return what each optimizer did in it."""
        before = [(bench.calls, bench.held()) for bench in self.benches]
        self.iterate(*overflows, bad=bad)
        return [
            Step(flag, bench.finite(), bench.calls > calls, bench.held() != held)
            for flag, bench, (calls, held) in zip(overflows, self.benches, before, strict=True)
        ]

    def observe(self, found_inf: Sequence[bool]) -> tuple[History, list[int | None]]:
        """Run the first optimizer; return the history, its delay taken out, and the streak shown after each update.

        With a delay of k the scale after update j is used k iterations later, so k clean ones follow.
        """
        used, shown = [], []
        with suppress(*self.traits.gives_up):
            for flag in [*found_inf, *[False] * self.traits.delay]:
                used.append(self.iterate(flag))
                shown.append(self.streak())
        used.append(self.loss_scale())
        after = used[self.traits.delay :]
        return History(self.rule, found_inf[: len(after) - 1], after), shown

    def live(self, rule: Rule, found_inf: Sequence[bool]) -> tuple[History, list[int | None]]:
        """Return what a fresh scaler's run was seen to be: it is run once, for all laws that ask about it."""
        seen: tuple[History, list[int | None]]
        lives, key = self.subject.lives, (rule, *found_inf)
        if key not in lives:
            self.start(rule)
            lives[key] = self.observe(found_inf), self.requested, self.events, self.scales
        seen, self.requested, self.events, self.scales = lives[key]
        return seen

    def streak(self) -> int | None:
        """Count clean steps, where the scaler shows them as torch does and no update is under way; else None."""
        shows = getattr(self.scaler, "_get_growth_tracker", None)
        return None if shows is None or self.traits.delay else int(shows())

    # -------------------------------------------------------------------------------------------- judging

    def log_event(self, event: str) -> None:
        """Add an event to the story."""
        self.events.append(event)

    def fail(self, seen: str) -> NoReturn:
        """Raise BrokenError, which says what was seen."""
        raise BrokenError(seen)

    def require(self, holds: bool, seen: str) -> None:
        """Fail unless it holds."""
        if not holds:
            self.fail(seen)

    def refuses(self, expected: Refusal, call: Callable[..., object], *args: object, **kwargs: object) -> None:
        """Fail unless the call raises, a drop-in what torch raises, and changes no scale, gradient or parameter."""
        before = self._untouched()
        event = f"{getattr(call, '__name__', 'call')}()"
        self.log_event(event)
        self.require_refusal(outcome(lambda: call(*args, **kwargs)), expected, event)
        self.require(self._untouched() == before, f"{event} was refused and changed gradients, parameters or the scale")

    def require_refusal(self, got: object, expected: Refusal, event: str) -> None:
        """Fail unless a call was refused: by any exception, or by torch's own if the scaler is a drop-in."""
        if not isinstance(got, Refusal):
            self.fail(f"{event} returned {got!r}, expected it to raise, as torch's {_format_refusal(expected)}")
        right = got == expected or not self.traits.drop_in
        self.require(right, f"{event} raised {_format_refusal(got)}, expected {_format_refusal(expected)}")

    def _untouched(self) -> list[object]:
        scale = self.scaler.get_scale() if hasattr(self.scaler, "get_scale") else None
        return [scale, *(bits(p.grad) for bench in self.benches for p in bench.params), *map(Bench.held, self.benches)]

    def story(self) -> list[tuple[str, str]]:
        """Return what was requested and done, as short as can be: lines of (label, text)."""
        changed = [f"{name}={format_number(getattr(self.requested, name))}" for name in CONSTANTS]
        lines = [("scaler", ", ".join(changed)), ("history", shorten(self.events))]
        scales = [*map(format_number, self.scales)]
        if len(scales) > SHOWN:
            scales[SHOWN // 2 : -(SHOWN // 2)] = ["..."]
        return [*lines, ("scale", " -> ".join(scales))]


def shorten(events: Iterable[str]) -> str:
    """Write equal events in a row as one: ``inf x 166, clean``."""
    runs = [(event, len(list(run))) for event, run in groupby(events)]
    return ", ".join(event if times == 1 else f"{event} x {times}" for event, times in runs)


def outcome(call: Callable[[], object]) -> object:
    """Return what a call returned, or a Refusal for what it raised."""
    try:
        return call()
    except Exception as error:
        return Refusal(type(error), str(error))


def format_number(number: float) -> str:
    """Write a number as one reads it: ``2**-128`` for a power of two that is far from 1."""
    mantissa, exponent = math.frexp(number)
    return f"2**{exponent - 1}" if mantissa == 0.5 and abs(exponent) > 20 else repr(number)


def _format_refusal(refusal: Refusal) -> str:
    return f"{refusal.kind.__name__}({refusal.text!r})"
