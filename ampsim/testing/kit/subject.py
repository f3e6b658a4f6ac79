"""The scaler under test, with torch's GradScaler methods and its declared differences."""

import inspect
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

from ampsim.core.machine import Arithmetic, Rule
from ampsim.core.validation import check_choice, nearest
from ampsim.testing.load import load
from ampsim.testing.source import Words

Scaler = Any  # anyone's object with torch's GradScaler methods: that it lacks one is a finding, not a type error
Maker = Callable[..., Scaler]
CONSTANTS = (
    "init_scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
)  # of a Rule, and of torch's scaler
FEATURES = {
    "drop_in": "torch's exact results where others are also correct: `Traits.drop_in`, or a subclass of torch's",
    "enabled": "make(rule, enabled=False), or a class with torch's `enabled`: a scaler that does nothing",
    "factors": "a growth factor and a backoff factor other than 2 and 1/2",
    "gradients": "dividing gradients; some scalers leave that to the caller",
    "fused": "fused optimizers, which check and unscale in their own kernel",
    "float16": "an error for float16 gradients, which underflow again if unscaled",
    "gives_up": "an exception of update() instead of a scale below min_scale: `Traits.gives_up`",
    "min_scale": "a smallest scale: `Traits.min_scale`",
    "growth": "a scale that changes; see `Traits.static`",
    "optimizers": "more than one optimizer",
    "override": "update(new_scale)",
    "pickle": "pickling between iterations",
    "reset": "finite steps that reset the hysteresis: `Traits.hysteresis_reset`",
    "refusals": "misuse raises immediately and does not change the scaler",
    "saved_constants": "a state dict with the constants, not only the state",
    "setters": "getters and setters of growth_factor, backoff_factor, and growth_interval",
    "skip_report": "last_step.skipped",
    "steps": "calling or skipping the optimizer; some scalers leave that to the caller",
    "state_dict": "state_dict() and load_state_dict()",
    "step_value": "step() returns what the optimizer's step returned",
    "strided": "fused steps for gradients whose strides differ from those of their parameters",
    "threads": "calls from more than one thread",
    "tickets": "begin_iteration(), whose ticket assigns calls to an iteration",
    "unscale_": "unscale_() as a separate call",
}


TORCHS = ("torch.amp.grad_scaler", "GradScaler")
NO_OPTION = ("gives_up", "unsupported")  # traits without ``--trait NAME=VALUE``


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Declared, intended differences of a scaler from torch's. An undeclared difference fails a check.

    Attributes:
        min_scale: Smallest scale after a backoff; None for no bound.
        max_scale: Largest scale after a growth; None for no bound.
        scale_dtype: Precision of the scale between updates.
        drop_in: Whether errors must have torch's types and texts, and gradients torch's exact bits.
        hysteresis: Number of overflows needed to trigger a backoff; at least 1.
        hysteresis_reset: Events that reset the hysteresis: "clean" (a finite step), "growth", "backoff", or a set.
        powers_of_two: Whether all scales and factors are powers of two.
        static: Whether the scale never changes.
        delay: Updates between the computation of a scale and its first use.
        skips: "each" if an overflow skips only its own optimizer, "all" if it skips every optimizer.
        gives_up: Exceptions that `update` raises instead of going below `min_scale`.
        unsupported: Features, from `FEATURES`, that the scaler does not support.

    Raises:
        ValueError: A feature is not in `FEATURES`; the text has the closest name.
    """

    min_scale: float | None = None
    max_scale: float | None = None
    scale_dtype: Literal["float32", "float64"] = "float32"
    drop_in: bool = False
    hysteresis: int = 1
    hysteresis_reset: str | frozenset[str] = frozenset({"growth"})
    powers_of_two: bool = False
    static: bool = False
    delay: int = 0
    skips: Literal["each", "all"] = "each"
    gives_up: tuple[type[Exception], ...] = ()
    unsupported: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        check_choice("skips", self.skips, ("each", "all"))
        check_choice("scale_dtype", self.scale_dtype, ("float32", "float64"))
        reset = (
            {self.hysteresis_reset}
            if isinstance(self.hysteresis_reset, str)
            else self.hysteresis_reset
        )
        object.__setattr__(self, "hysteresis_reset", frozenset(reset))
        for each in reset:
            check_choice("hysteresis_reset", each, ("clean", "growth", "backoff"))
        object.__setattr__(self, "unsupported", frozenset(self.unsupported))
        for name in sorted(self.unsupported - {*FEATURES}):
            raise ValueError(f"unsupported={name!r}: no such feature; {nearest(name, FEATURES)}")

    @property
    def declares(self) -> dict[str, bool]:
        """Which features these traits are, by name."""
        return {
            "gives_up": bool(self.gives_up),
            "min_scale": self.min_scale is not None,
            "reset": self.hysteresis > 1 and "clean" in self.hysteresis_reset,
        }

    def as_options(self) -> list[str]:
        """Return the options of ``ampsim check`` that declare these traits; `gives_up` and an empty set have none."""
        changed = [
            (each.name, getattr(self, each.name))
            for each in fields(self)
            if each.name not in NO_OPTION
        ]
        changed = [
            (name, value)
            for name, value in changed
            if value not in (getattr(Traits(), name), frozenset())
        ]
        traits = [
            f"{name}={min(value) if isinstance(value, frozenset) else value}"
            for name, value in changed
        ]
        return [word for text in traits for word in ("--trait", text)] + [
            word for name in sorted(self.unsupported) for word in ("--unsupported", name)
        ]

    def possible(self, rule: Rule) -> Rule:
        """Return the closest rule that the scaler supports."""
        factors = (
            (2.0, 0.5)
            if "factors" in self.unsupported
            else (rule.growth_factor, rule.backoff_factor)
        )
        growth, backoff = map(self.fitted, factors)
        return rule.replace(
            init_scale=self.within(rule.init_scale), growth_factor=growth, backoff_factor=backoff
        )

    def within(self, scale: float) -> float:
        """Return the closest scale that the scaler supports, within its bounds."""
        top = self.max_scale or (math.inf if self.scale_dtype == "float32" else 2.0**64)
        return float(self.fitted(max(self.min_scale or 0.0, min(top, scale))))

    def fitted(self, value: Any) -> Any:
        """Return a factor, or a tuple with factors, as the scaler supports it: for `powers_of_two` the nearest one."""
        if isinstance(value, tuple):
            return tuple(map(self.fitted, value))
        return (
            2.0 ** round(math.log2(value))
            if self.powers_of_two and isinstance(value, float)
            else value
        )

    def follows(self, rule: Rule) -> Rule:
        """Return the rule that a scaler with these traits follows if it is made for `rule`."""
        still = {"growth_factor": 1.0, "backoff_factor": 1.0} if self.static else {}
        return self.possible(rule).replace(
            **still,
            hysteresis_reset=self.hysteresis_reset,
            min_scale=self.min_scale,
            max_scale=self.max_scale,
            hysteresis=self.hysteresis,
            delay=self.delay,
            arithmetic=Arithmetic(dtype=self.scale_dtype),
        )


@dataclass(frozen=True)
class Subject:
    """A scaler under test.

    Attributes:
        make: Makes a fresh scaler on the CPU with the four constants of a rule, and raises for constants that the
            scaler does not support. A class, or another callable with torch's arguments, becomes such a function.
        traits: Intended differences of the scaler.
        name: Name in reports.
        words: Functions of its adapter; None for torch's methods.
        lives: Cache of `Example.observe`.
        overdue: Checks that did not end.

    Raises:
        TypeError: The target is not callable.
    """

    make: Maker
    traits: Traits = field(default_factory=Traits)
    name: str = ""
    words: Words | None = field(default=None, repr=False, compare=False)
    lives: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    overdue: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        target = self.make
        if not callable(target):
            raise TypeError(
                f"{target!r} is a {type(target).__name__}: expected a GradScaler class or make(rule)"
            )
        words = [
            getattr(target, "__module__", ""),
            getattr(target, "__qualname__", type(target).__name__),
        ]
        object.__setattr__(
            self, "name", self.name or ":".join(filter(None, words))
        )  # as `load` takes it
        object.__setattr__(self, "make", _maker(target))

    @cached_property
    def lacking(self) -> frozenset[str]:
        """The unsupported features: those in `traits`, and those in the scaler's own ``unsupported``."""
        made: object = None
        with suppress(Exception):
            made = self.make(self.traits.possible(Rule()))
        said = getattr(made, "unsupported", None)
        has = {
            "drop_in": self.traits.drop_in or self.is_torchs,
            "enabled": "enabled" in _parameters(self.make)[0],
            "growth": not self.traits.static,
        }
        has |= {"tickets": callable(getattr(made, "begin_iteration", None)), **self.traits.declares}
        unasked = {name for name, there in has.items() if not there}
        return (
            self.traits.unsupported
            | unasked
            | (said if isinstance(said, frozenset) else frozenset())
        )

    @cached_property
    def kind(self) -> type:
        """The class of what it makes; that of None where making it raises, which is a finding of each check."""
        with suppress(Exception):
            return type(self.make(self.traits.possible(Rule())))
        return type(None)

    @property
    def is_torchs(self) -> bool:
        """Whether what it makes inherits from torch's scaler."""
        return any((each.__module__, each.__name__) == TORCHS for each in self.kind.__mro__)

    @property
    def inherits(self) -> bool:
        """Whether what it makes is of another class, which inherits from torch's scaler."""
        return self.is_torchs and (self.kind.__module__, self.kind.__name__) != TORCHS

    def try_out(self) -> None:
        """Make one scaler; raise ValueError if that fails or does not return a scaler."""
        try:
            made = self.make(self.traits.possible(Rule()))
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"{self.name}: making it raised {type(error).__name__}: {error}; "
                "expected a scaler on the CPU from a class with torch's constructor or from make(rule)"
            ) from error
        missing = [
            name for name in ("scale", "step", "update") if not callable(getattr(made, name, None))
        ]
        if missing:
            raise ValueError(
                f"{self.name}: making it returned {made!r}, without {', '.join(missing)}: "
                "expected torch's GradScaler methods; FoundInfAdapter adapts a scaler with other methods"
            )


def as_subject(target: object, traits: Traits | None = None, name: str = "") -> Subject:
    """Make a Subject of a class with torch's constructor or of a maker; return a Subject as it is.

    Raises TypeError for anything else.
    """
    if isinstance(target, Subject):
        return target if traits is None else Subject(target.make, traits, target.name)
    return Subject(target, traits or Traits(), name)  # type: ignore[arg-type]  # which raises


def _parameters(target: Callable[..., object]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return what a callable takes, by name, and whether it takes anything more.

    A class that hands on ``*args`` or ``**kwargs`` also takes what the next class takes that has a constructor.
    """
    found: dict[str, inspect.Parameter] = {}
    classes = target.__mro__[:-1] if isinstance(target, type) else ()
    makers: list[Callable[..., object]] = [
        each for each in classes if {"__init__", "__new__"} & vars(each).keys()
    ]
    for each in makers or [target]:
        try:
            parameters = inspect.signature(each).parameters
        except (TypeError, ValueError):  # it is written in C and does not say
            return found, False
        passes_on = [
            name
            for name, each in parameters.items()
            if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        ]
        found |= {
            name: each for name, each in parameters.items() if name not in {*passes_on, *found}
        }
        if not passes_on:
            return found, False
    return found, True


def arguments_of(
    target: Callable[..., object],
) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]] | None:
    """Return a function of a rule and `enabled` that gives the arguments to call with; None if it takes the rule."""
    names, takes_more = _parameters(target)
    hides, first = isinstance(target, type) and takes_more, next(iter(names.values()), None)
    if "init_scale" not in names and not (hides and not {*names} - {"device", "enabled"}):
        if hides and first and first.default is not first.empty:
            raise TypeError(
                f"{target.__qualname__} has neither a parameter init_scale nor a rule as its first parameter: "
                "expected make(rule)"
            )
        return None
    own = inspect.signature(target).parameters
    by_name = "init_scale" in own or any(each.kind is each.VAR_KEYWORD for each in own.values())

    def arguments(rule: Rule, *, enabled: bool = True) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = {
            "device": "cpu",
            **{name: getattr(rule, name) for name in CONSTANTS},
            "enabled": enabled,
        }
        if not by_name:
            return tuple(given.values()), {}
        return (), {name: value for name, value in given.items() if name in names or takes_more}

    return arguments


def _maker(target: Maker) -> Maker:
    """Return a function of a rule: torch's arguments where the target takes them, else the rule itself is passed."""
    arguments = arguments_of(target)
    if arguments is None:
        return target

    def make(rule: Rule, *, enabled: bool = True) -> Scaler:
        by_place, by_name = arguments(rule, enabled=enabled)
        return target(*by_place, **by_name)

    by_place, by_name = arguments(Rule())
    return make if by_place or "enabled" in by_name else lambda rule: make(rule)


def find(target: str, **declared: Any) -> Subject:
    """Return the Subject that ``module:attribute`` names, with these traits declared on top of its own."""
    subject = as_subject(load(target))
    unsupported = subject.traits.unsupported | declared.pop("unsupported", frozenset())
    return Subject(
        subject.make, replace(subject.traits, **declared, unsupported=unsupported), target
    )
