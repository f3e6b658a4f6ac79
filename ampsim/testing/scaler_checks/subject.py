"""The scaler under test: a function that makes a fresh one, a name, and its declared traits."""

import inspect
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from ampsim.core.machine import Rule
from ampsim.testing.alarm import OverdueError, alarm
from ampsim.testing.load import load
from ampsim.testing.scaler_checks.adapter import ScalerAdapter
from ampsim.testing.scaler_checks.construction import Maker, maker_of, parameters
from ampsim.testing.scaler_checks.traits import Traits

PROBING = 5.0  # seconds of CPU time: a scaler that hangs has no features, and fails the checks
METHODS = {  # feature -> the methods that it needs
    "setters": tuple(
        f"{call}_{name}"
        for name in ("growth_factor", "backoff_factor", "growth_interval")
        for call in ("get", "set")
    ),
    "state_dict": ("state_dict", "load_state_dict"),
    "unscale_": ("unscale_",),
}


@dataclass(frozen=True)
class Subject:
    """A scaler under test.

    Attributes:
        make: Makes a fresh scaler on the CPU with the four constants of a rule, and raises for
            constants that the scaler does not support. A class, or another callable with torch's
            arguments, becomes such a function.
        traits: Intended differences of the scaler.
        name: Name in reports.
        adapter: Class that drives the scaler; the default calls torch's methods.
        cache: Runs that checks share, and what was observed of the scaler.
        overdue: Checks that did not end.

    Raises:
        TypeError: The target is not callable.
    """

    make: Maker
    traits: Traits = field(default_factory=Traits)
    name: str = ""
    adapter: type[ScalerAdapter] = field(
        default=ScalerAdapter, repr=False, compare=False
    )
    cache: dict[object, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    overdue: list[str] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        target = self.make
        if not callable(target):
            raise TypeError(
                f"{target!r} is a {type(target).__name__}: expected a GradScaler class or make(rule)"
            )
        module = getattr(target, "__module__", "")
        path = getattr(target, "__qualname__", type(target).__name__)
        name = self.name or ":".join(filter(None, [module, path]))  # as `load` takes it
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "make", maker_of(target))

    def declared(self, **traits: Any) -> "Subject":
        """Return the scaler with these traits too; unsupported features are added to its own."""
        unsupported = self.traits.unsupported | traits.pop("unsupported", frozenset())
        changed = replace(self.traits, **traits, unsupported=unsupported)
        return Subject(self.make, changed, self.name, self.adapter)

    def make_default(self) -> Any:
        """Make a scaler with torch's default constants, as far as it supports them."""
        return self.make(self.traits.possible(Rule()))

    def new_adapter(self) -> ScalerAdapter:
        """Return an adapter that records nothing."""

        def make(**constants: float) -> Any:
            return self.make(self.traits.possible(Rule(**constants)))  # type: ignore[arg-type]

        return self.adapter(make, self.traits)

    @cached_property
    def example(self) -> Any:
        """A scaler that it makes; None if making it raises, which is a finding of each check."""
        with suppress(Exception):
            return self.make_default()
        return None

    @cached_property
    def unsupported(self) -> dict[str, str]:
        """Each unsupported feature, with the reason: declared, or what the scaler does not have."""
        reasons = dict.fromkeys(self.traits.unsupported, "declared")
        own = getattr(self.example, "unsupported", ())
        reasons |= dict.fromkeys(
            own if isinstance(own, frozenset) else (), "declared by the scaler"
        )
        for feature, is_declared in self.traits.declared_features.items():
            if not is_declared:
                reasons.setdefault(feature, "not declared in Traits")
        if "enabled" not in parameters(self.make)[0]:
            reasons["enabled"] = "the scaler is not made with enabled="
        if not callable(getattr(self.example, "begin_iteration", None)):
            reasons["tickets"] = "no method begin_iteration"
        return {**self.missing, **reasons}

    @cached_property
    def missing(self) -> dict[str, str]:
        """Each feature that the scaler lacks and that is not declared, with what it lacks."""
        scaler, declared = self.example, self.traits.unsupported
        own = getattr(scaler, "unsupported", ())
        declared |= frozenset(own if isinstance(own, frozenset) else ())
        lacks = dict[str, str]()
        with suppress(OverdueError), alarm(PROBING):
            for feature, probe in PROBES.items():
                if feature in declared or (self.is_torchs and feature in TORCHS):
                    continue
                with suppress(Exception):
                    lacks[feature] = probe(self) if scaler is not None else ""
        return {feature: what for feature, what in lacks.items() if what}

    @property
    def is_torchs(self) -> bool:
        """Whether what it makes inherits from torch's scaler."""
        return isinstance(self.example, torch.amp.GradScaler)

    @property
    def inherits(self) -> bool:
        """Whether what it makes is of another class, which inherits from torch's scaler."""
        return self.is_torchs and type(self.example) is not torch.amp.GradScaler

    def try_out(self) -> None:
        """Make one scaler; raise ValueError if that fails or does not return a scaler."""
        try:
            made = self.make_default()
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"{self.name}: making it raised {type(error).__name__}: {error}; expected a scaler "
                "on the CPU from a class with torch's constructor or from make(rule)"
            ) from error
        calls = ("scale", "step", "update")
        missing = [name for name in calls if not callable(getattr(made, name, None))]
        if missing and self.adapter is ScalerAdapter:
            raise ValueError(
                f"{self.name}: making it returned {made!r}, without {', '.join(missing)}: expected torch's "
                "GradScaler methods; FoundInfAdapter adapts a scaler with other methods"
            )


def as_subject(target: object, traits: Traits | None = None) -> Subject:
    """Make a Subject of a class with torch's constructor or of a maker; return a Subject as it is.

    Raises TypeError for anything else.
    """
    if isinstance(target, Subject):
        return target if traits is None else replace(target, traits=traits)
    return Subject(target, traits or Traits())  # type: ignore[arg-type]  # which raises


def find(target: str, **declared: Any) -> Subject:
    """Return the Subject that ``module:attribute`` names, with these traits declared on top of its
    own.
    """
    return replace(as_subject(load(target)).declared(**declared), name=target)


# A probe returns what a scaler lacks, or "". What it raises shows nothing: a check will raise it
# too.


def _missing_methods(names: tuple[str, ...]) -> Callable[[Subject], str]:
    def probe(subject: Subject) -> str:
        return ", ".join(
            n for n in names if not callable(getattr(subject.example, n, None))
        )

    return probe


def _fixed_scale(subject: Subject) -> str:
    update = inspect.signature(subject.example.update).parameters
    return "" if update else "update() takes no new_scale"


def _unpicklable(subject: Subject) -> str:
    try:
        pickle.dumps(subject.make_default())
    except Exception as error:
        return f"pickling raised {type(error).__name__}: {error}"
    return ""


def _unreported_skips(subject: Subject) -> str:
    scaler = subject.make_default()
    subject.new_adapter().iterate(scaler, found_inf=False)
    return "" if hasattr(scaler, "last_step") else "no last_step after step()"


PROBES: dict[str, Callable[[Subject], str]] = {
    **{feature: _missing_methods(names) for feature, names in METHODS.items()},
    "override": _fixed_scale,
    "pickle": _unpicklable,
    "skip_report": _unreported_skips,
}
TORCHS = (
    "skip_report",
)  # torch's scaler lacks it too: `known_failures.TORCH` has the check
