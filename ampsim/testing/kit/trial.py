"""One example of a check: a scaler, optimizers with real parameters, and the story of what was done to them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NoReturn

import torch

from ampsim.core.laws import History, Step
from ampsim.core.machine import Rule, init, update
from ampsim.core.torch_model.refusals import Refusal
from ampsim.testing.kit.subject import CONSTANTS, Scaler, Subject

RULE = Rule(growth_interval=3)  # where a check does not draw one
SHOWN = 7  # scales that a story shows
Optimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def sgd(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Make SGD with momentum, so that a step with gradients of zero is seen too."""
    return torch.optim.SGD(params, lr=0.125, momentum=0.9, foreach=False)


def fused(params: list[torch.nn.Parameter], lr: float = 0.125) -> torch.optim.Optimizer:
    """Make AdamW whose kernel divides by the scale and skips by itself."""
    return torch.optim.AdamW(params, lr=lr, fused=True)


class Bench:
    """An optimizer, the parameters it owns, and how often it was called."""

    def __init__(
        self,
        optimizer: Optimizer = sgd,
        shapes: Sequence[tuple[int, ...]] = ((3,),),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.params = [torch.nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes]
        self.optimizer = optimizer(self.params)
        self.calls = 0
        self.optimizer.register_step_pre_hook(self._called)

    def _called(self, *_: object) -> None:
        self.calls += 1

    def put(self, value: float, bad: float | None = None) -> None:
        """Set every element of every gradient to `value`, and the last of the last parameter's to `bad`."""
        for param in self.params:
            param.grad = torch.full_like(param, value)
        if bad is not None:
            self.grad(-1).view(-1)[-1] = bad

    def grad(self, index: int = 0) -> torch.Tensor:
        """Return the gradient of a parameter that has one."""
        grad = self.params[index].grad
        assert grad is not None  # noqa: S101
        return grad

    def held(self) -> list[object]:
        """Return every bit of parameters and optimizer state."""
        state = [self.optimizer.state.get(param, {}) for param in self.params]
        return [*map(bits, self.params), *(bits(each[name]) for each in state for name in sorted(each))]

    def finite(self) -> bool:
        """Return whether every parameter is finite."""
        return all(bool(param.isfinite().all()) for param in self.params)


def bits(value: object) -> object:
    """Return a tensor as its bytes, whatever its dtype, and any other value as it is."""
    if isinstance(value, torch.Tensor):
        return value.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
    return value


class BrokenError(AssertionError):
    """A law does not hold; the text says what was seen instead."""


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
        return feature not in self.traits.without

    # -------------------------------------------------------------------------------------------- driving

    def start(self, rule: Rule = RULE, *benches: Bench) -> Scaler:
        """Make a fresh scaler for `rule`. What it is to follow, traits included, becomes `self.rule`."""
        self.requested, self.rule = self.traits.possible(rule), self.traits.follows(rule)
        self.state, self.benches = init(self.rule), benches or (Bench(),)
        self.scaler = self.subject.make(self.requested)
        return self.scaler

    def loss_scale(self) -> float:
        """Return what the scaler multiplies a loss by, here and now."""
        scale = float(self.scaler.scale(torch.ones(())).item())
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
        self.require(
            scale == self.state.scale,
            f"the scale is {format_number(scale)}, expected {format_number(self.state.scale)}",
        )

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
        """Fail unless the call raises this type and text, and changes neither scale nor gradients nor parameters."""
        before = self._untouched()
        event = f"{getattr(call, '__name__', 'call')}()"
        self.log_event(event)
        got = outcome(lambda: call(*args, **kwargs))
        if not isinstance(got, Refusal):
            self.fail(f"{event} returned {got!r}, expected {_format_refusal(expected)}")
        self.require(got == expected, f"{event} raised {_format_refusal(got)}, expected {_format_refusal(expected)}")
        self.require(self._untouched() == before, f"{event} was refused and changed gradients, parameters or the scale")

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
