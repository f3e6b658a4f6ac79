"""One example of a check: a scaler, optimizers with real parameters, and the story of what was done to them."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, NoReturn

import torch

from ampsim.core.laws import History, Step
from ampsim.core.machine import Rule, init, update
from ampsim.core.torch_model.refusals import Refusal
from ampsim.testing.kit.subject import CONSTANTS, Subject

RULE = Rule(growth_interval=3)  # where a check does not draw one
SHOWN = 7  # scales that a story shows
Optimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def sgd(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Momentum, so that a step with gradients of zero is seen too."""
    return torch.optim.SGD(params, lr=0.125, momentum=0.9, foreach=False)


def fused(params: list[torch.nn.Parameter], lr: float = 0.125) -> torch.optim.Optimizer:
    """AdamW whose kernel divides by the scale and skips by itself."""
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

    def _called(self, *_: Any) -> None:
        self.calls += 1

    def put(self, value: float, bad: float | None = None) -> None:
        """Every gradient element becomes `value`, the last of the last parameter `bad`."""
        for param in self.params:
            param.grad = torch.full_like(param, value)
        if bad is not None:
            self.grad(-1).view(-1)[-1] = bad

    def grad(self, index: int = 0) -> torch.Tensor:
        """The gradient of a parameter, which has one."""
        grad = self.params[index].grad
        assert grad is not None  # noqa: S101
        return grad

    def held(self) -> list[Any]:
        """Every bit of parameters and optimizer state."""
        state = [self.optimizer.state.get(param, {}) for param in self.params]
        return [*map(bits, self.params), *(bits(each[name]) for each in state for name in sorted(each))]

    def finite(self) -> bool:
        """Whether every parameter is."""
        return all(bool(param.isfinite().all()) for param in self.params)


def bits(value: Any) -> Any:
    """A tensor as its bytes, whatever its dtype; other values as they are."""
    tensor = isinstance(value, torch.Tensor)
    return value.detach().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor else value


class BrokenError(AssertionError):
    """What was seen where a law should have held."""


class Trial:
    """What a check is given. It starts a scaler, drives it, and fails with what was seen."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.traits = subject, subject.traits
        self.asked = self.rule = RULE
        self.state = init(RULE)  # of the reference machine, for `follow`
        self.scaler: Any = None
        self.benches: tuple[Bench, ...] = ()
        self.events: list[str] = []
        self.scales: list[float] = []

    def has(self, feature: str) -> bool:
        """Whether the scaler has this one of `FEATURES`: it does not declare to be without."""
        return feature not in self.traits.without

    # -------------------------------------------------------------------------------------------- driving

    def start(self, rule: Rule = RULE, *benches: Bench) -> Any:
        """A fresh scaler for `rule`, which is what `self.rule` becomes less what the traits change."""
        self.asked, self.rule = self.traits.possible(rule), self.traits.follows(rule)
        self.state, self.benches = init(self.rule), benches or (Bench(),)
        self.scaler = self.subject.make(self.asked)
        return self.scaler

    def loss_scale(self) -> float:
        """What the scaler multiplies a loss by, here and now."""
        scale = float(self.scaler.scale(torch.ones(())).item())
        self.scales += [scale] if self.scales[-1:] != [scale] else []
        return scale

    def iterate(self, *overflows: bool, bad: float = math.inf) -> float:
        """One iteration in which optimizer i has a `bad` gradient if ``overflows[i]``; the scale that it used."""
        scale = self.loss_scale()
        flags = overflows or (False,) * len(self.benches)
        self.tell("+".join(str(bad) if flag else "clean" for flag in flags))
        for bench, flag in zip(self.benches, flags, strict=True):
            bench.put(scale, bad if flag else None)
        for bench in self.benches:
            self.scaler.step(bench.optimizer)
        self.scaler.update()
        return scale

    def overflow(self) -> None:
        """One iteration in which every optimizer overflows; a scaler may give up."""
        with suppress(*self.traits.gives_up):
            self.iterate(*[True] * len(self.benches))

    def follow(self, *overflows: bool) -> None:
        """`iterate`, and the scale that it used is the reference machine's."""
        self.hold_scale(self.iterate(*overflows))
        self.state = update(self.rule, self.state, any(overflows))

    def hold_scale(self, scale: float) -> None:
        """Fail unless a scale is the reference machine's, to the last bit."""
        self.hold(scale == self.state.scale, f"the scale is {told(scale)}, expected {told(self.state.scale)}")

    def steps(self, *overflows: bool, bad: float = math.inf) -> list[Step]:
        """`iterate`, and what each optimizer did in it."""
        before = [(bench.calls, bench.held()) for bench in self.benches]
        self.iterate(*overflows, bad=bad)
        return [
            Step(flag, bench.finite(), bench.calls > calls, bench.held() != held)
            for flag, bench, (calls, held) in zip(overflows, self.benches, before, strict=True)
        ]

    def observe(self, found_inf: Sequence[bool]) -> tuple[History, list[int | None]]:
        """A run of the first optimizer, its delay taken out; and the streak shown after each update, or None.

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
        """Clean steps counted, where the scaler shows them as torch does and no update is under way."""
        shows = getattr(self.scaler, "_get_growth_tracker", None)
        return None if shows is None or self.traits.delay else int(shows())

    # -------------------------------------------------------------------------------------------- judging

    def tell(self, event: str) -> None:
        """Add an event to the story."""
        self.events.append(event)

    def fail(self, seen: str) -> NoReturn:
        """The law is broken: say what was seen."""
        raise BrokenError(seen)

    def hold(self, holds: bool, seen: str) -> None:
        """Fail unless it holds."""
        if not holds:
            self.fail(seen)

    def refuses(self, expected: Refusal, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """The call raises this type and this text, and changes neither scale nor gradients nor parameters."""
        before = self._untouched()
        event = f"{getattr(call, '__name__', 'call')}()"
        self.tell(event)
        got = outcome(lambda: call(*args, **kwargs))
        if not isinstance(got, Refusal):
            self.fail(f"{event} returned {got!r}, expected {_told(expected)}")
        self.hold(got == expected, f"{event} raised {_told(got)}, expected {_told(expected)}")
        self.hold(self._untouched() == before, f"{event} was refused and changed gradients, parameters or the scale")

    def _untouched(self) -> list[Any]:
        scale = self.scaler.get_scale() if hasattr(self.scaler, "get_scale") else None
        return [scale, *(bits(p.grad) for bench in self.benches for p in bench.params), *map(Bench.held, self.benches)]

    def story(self) -> list[tuple[str, str]]:
        """What was asked for and done, shortest form: lines of (label, text)."""
        changed = [f"{name}={told(getattr(self.asked, name))}" for name in CONSTANTS]
        lines = [("scaler", ", ".join(changed)), ("history", shorten(self.events))]
        scales = [*map(told, self.scales)]
        if len(scales) > SHOWN:
            scales[SHOWN // 2 : -(SHOWN // 2)] = ["..."]
        return [*lines, ("scale", " -> ".join(scales))]


def shorten(events: Iterable[str]) -> str:
    """Equal events in a row as one: ``inf x 166, clean``."""
    runs = [(event, len(list(run))) for event, run in groupby(events)]
    return ", ".join(event if times == 1 else f"{event} x {times}" for event, times in runs)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returned, or a Refusal for what it raised."""
    try:
        return call()
    except Exception as error:
        return Refusal(type(error), str(error))


def told(number: float) -> str:
    """A number as one reads it: ``2**-128`` for a power of two that is far from 1."""
    mantissa, exponent = math.frexp(number)
    return f"2**{exponent - 1}" if mantissa == 0.5 and abs(exponent) > 20 else repr(number)


def _told(refusal: Refusal) -> str:
    return f"{refusal.kind.__name__}({refusal.text!r})"
