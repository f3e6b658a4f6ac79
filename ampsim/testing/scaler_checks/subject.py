"""The scaler under test: a function that makes a fresh one, a name, and its declared traits."""

import inspect
import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from ampsim.core.machine import SETTABLE, Rule
from ampsim.testing import known_failures
from ampsim.testing.alarm import OverdueError, alarm
from ampsim.testing.construction import WRITE_MAKE, Maker, maker_of, parameters
from ampsim.testing.examples import warm_up
from ampsim.testing.load import load
from ampsim.testing.scaler_checks.adapter import ScalerAdapter
from ampsim.testing.scaler_checks.traits import CLAIMED, Traits

PROBING = 5.0  # seconds of CPU time: a scaler that hangs has no features, and fails the checks
METHODS = {  # feature -> the methods that it needs
    "setters": tuple(f"{call}_{name}" for name in SETTABLE for call in ("get", "set")),
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

    def __post_init__(self) -> None:
        target = self.make
        if not callable(target):
            raise TypeError(
                f"{target!r} has type {type(target).__name__}: expected a GradScaler class or make(rule)"
            )
        module = getattr(target, "__module__", "")
        path = getattr(target, "__qualname__", type(target).__name__)
        name = self.name or ":".join(filter(None, [module, path]))  # as `load` takes it
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "make", maker_of(target))

    def declared(self, **traits: Any) -> "Subject":
        """Return the scaler with these traits too; features are added to its own."""
        for name in ("supported", "unsupported"):
            traits[name] = getattr(self.traits, name) | traits.get(name, frozenset())
        return Subject(
            self.make, replace(self.traits, **traits), self.name, self.adapter
        )

    def make_default(self) -> Any:
        """Make a scaler with torch's default constants, as far as it supports them."""
        return self.make(self.traits.possible(Rule()))

    @cached_property
    def example(self) -> Any:
        """A scaler that it makes; None if making it raises, which is a finding of each check."""
        with suppress(Exception):
            return self.make_default()
        return None

    @cached_property
    def unsupported(self) -> dict[str, str]:
        """Each unsupported feature, with the reason: declared, or what the scaler does not have."""
        reasons = {**self.missing, **self._declared_unsupported()}
        if not self.traits.gives_up:
            reasons.setdefault("gives_up", "not declared in Traits")
        if self.traits.static:
            reasons.setdefault("growth", "static in Traits")
        if "enabled" not in parameters(self.make)[0]:
            reasons["enabled"] = "the scaler is not made with enabled="
        has_tickets = callable(getattr(self.example, "begin_iteration", None))
        if not has_tickets:
            reasons["tickets"] = "no method begin_iteration"
        claimed = self.traits.supported | self._own("supported")
        if has_tickets:  # which are for calls from several threads
            claimed |= {"threads"}
        if not (self.is_torchs or self.traits.drop_in):
            for name in CLAIMED - claimed:
                claim = f"Traits(supported={{{name!r}}})"
                reason = f"asked of subclasses of torch's scaler, or with {claim}"
                reasons.setdefault(name, reason)
        return reasons

    def _declared_unsupported(self) -> dict[str, str]:
        reasons = dict.fromkeys(self.traits.unsupported, "declared")
        own = dict.fromkeys(self._own("unsupported"), "declared by the scaler")
        return reasons | own

    def _own(self, attribute: str) -> frozenset[str]:
        """Return the features that an attribute of the scaler declares."""
        own = getattr(self.example, attribute, None)
        return own if isinstance(own, frozenset) else frozenset()

    @cached_property
    def missing(self) -> dict[str, str]:
        """Each feature that the scaler lacks and that is not declared, with what it lacks."""
        warm_up()
        lacks = dict[str, str]()
        # What a probe raises shows nothing: a check will raise it too.
        with suppress(OverdueError, Exception), alarm(PROBING):
            if self.example is not None:
                lacks.update(_probed(self))
        if self.is_torchs:  # `known_failures.TORCH` has the check
            lacks.pop("skip_report", None)
        declared = self._declared_unsupported()
        return {name: lack for name, lack in lacks.items() if name not in declared}

    @property
    def is_torchs(self) -> bool:
        """Whether what it makes inherits from torch's scaler."""
        return isinstance(self.example, torch.amp.GradScaler)

    def known_failure(self, check: str) -> str | None:
        """Return why a failure of a check is no finding, as torch's scaler fails it; else None."""
        return known_failures.known(check, inherits=self.is_torchs)

    def try_out(self) -> None:
        """Make one scaler; raise ValueError if that fails or does not return a scaler."""
        try:
            made = self.make_default()
        except (Exception, SystemExit) as error:
            advice = WRITE_MAKE.format(self.name.rpartition(":")[2])
            raise ValueError(
                f"{self.name}: making it on the CPU raised {type(error).__name__}: {error}; without "
                f"torch's constructor, {advice}"
            ) from error
        calls = ("scale", "step", "update")
        missing = [name for name in calls if not callable(getattr(made, name, None))]
        if missing and self.adapter is ScalerAdapter:
            raise ValueError(
                f"{self.name}: making it returned a {type(made).__name__}, without {', '.join(missing)}: expected "
                "the methods of torch's GradScaler; FoundInfAdapter adapts a scaler with other methods"
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


def _probed(subject: Subject) -> Iterator[tuple[str, str]]:
    """Yield each optional feature that a scaler lacks, with what it lacks."""
    for feature, names in METHODS.items():
        absent = [
            each for each in names if not callable(getattr(subject.example, each, None))
        ]
        if absent:
            yield feature, ", ".join(absent)
    if not inspect.signature(subject.example.update).parameters:
        yield "override", "update() takes no new_scale"
    try:
        pickle.dumps(subject.make_default())
    except Exception as error:
        yield "pickle", f"pickling raised {type(error).__name__}: {error}"
    scaler = subject.make_default()
    adapter = subject.adapter(lambda **_: scaler, subject.traits)
    adapter.iterate(scaler, False)
    if not hasattr(scaler, "last_step"):
        yield "skip_report", "no last_step after step()"
