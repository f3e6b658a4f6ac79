"""The scaler under test: whatever has torch's GradScaler methods, and what it declares to do differently."""

import importlib
import inspect
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from ampsim.core.arguments import check_choice, nearest
from ampsim.core.machine import Rule

if TYPE_CHECKING:
    import torch

Scaler = Any  # anyone's object with torch's GradScaler methods: that it lacks one is a finding, not a type error
Maker = Callable[[Rule], Scaler]
CONSTANTS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")  # of a Rule, and of torch's scaler
FEATURES = {
    "fused": "fused optimizers, which check and divide in their own kernel",
    "override": "update(new_scale)",
    "pickle": "pickling between iterations",
    "refusals": "misuse raises, at once and where it is made, and the scaler lives on",
    "setters": "get_growth_factor() and set_growth_factor(), and so for backoff_factor and growth_interval",
    "skip_report": "last_step.skipped",
    "state_dict": "state_dict() and load_state_dict()",
    "step_value": "step() returns what the optimizer's step returned",
    "threads": "calls from more than one thread",
    "unscale_": "unscale_() apart from step()",
}


NO_OPTION = ("gives_up", "without")  # of Traits: not to be said as ``--trait NAME=VALUE``


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Declared differences of a scaler, made on purpose. A difference that is not declared is a failure.

    Raises ValueError for a feature that is not in `FEATURES`, naming the closest.
    """

    min_scale: float | None = None  # no backoff leads below
    max_scale: float | None = None  # no growth leads above
    hysteresis: int = 1  # overflows that a backoff takes
    delay: int = 0  # updates between computing a scale and using it
    skips: Literal["each", "all"] = "each"  # an overflow skips the optimizer that has it, or every one
    gives_up: tuple[type[Exception], ...] = ()  # what `update` raises instead of going below the floor
    without: frozenset[str] = field(default_factory=frozenset)  # of FEATURES

    def __post_init__(self) -> None:
        check_choice("skips", self.skips, ("each", "all"))
        object.__setattr__(self, "without", frozenset(self.without))
        for name in sorted(self.without - {*FEATURES}):
            raise ValueError(f"without={name!r}: no such feature; {nearest(name, FEATURES)}")

    def as_options(self) -> list[str]:
        """Return the options of ``ampsim check`` that declare these traits; `gives_up` has none."""
        changed = [(each.name, getattr(self, each.name)) for each in fields(self) if each.name not in NO_OPTION]
        traits = [f"{name}={value}" for name, value in changed if value != getattr(Traits(), name)]
        return [word for text in traits for word in ("--trait", text)] + [
            word for name in sorted(self.without) for word in ("--without", name)
        ]

    def possible(self, rule: Rule) -> Rule:
        """Return `rule` with its first scale moved to within the bounds."""
        within = max(self.min_scale or 0.0, min(self.max_scale or math.inf, rule.init_scale))
        return rule if within == rule.init_scale else rule.replace(init_scale=within)

    def follows(self, rule: Rule) -> Rule:
        """Return the rule that a scaler with these traits follows when it is asked for `rule`."""
        return self.possible(rule).replace(
            min_scale=self.min_scale, max_scale=self.max_scale, hysteresis=self.hysteresis, delay=self.delay
        )


@dataclass(frozen=True)
class Subject:
    """A scaler under test."""

    make: Maker
    """Makes a fresh scaler on the CPU with the rule's four constants; what it refuses it raises."""
    traits: Traits = field(default_factory=Traits)
    name: str = ""

    def try_out(self) -> None:
        """Make one scaler; raise ValueError if that raises, or if what is made is none."""
        try:
            made = self.make(self.traits.possible(Rule()))
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"{self.name}: making it raised {type(error).__name__}: {error}; "
                "expected a scaler on the CPU from a class with torch's constructor or from make(rule)"
            ) from error
        missing = [name for name in ("scale", "step", "update") if not callable(getattr(made, name, None))]
        if missing:
            raise ValueError(
                f"{self.name}: making it gave {made!r}, without {', '.join(missing)}: "
                "expected torch's GradScaler methods; FromFlag adapts a scaler that has others"
            )


def as_subject(target: object, traits: Traits | None = None, name: str = "") -> Subject:
    """Make a Subject of a class with torch's constructor or of a maker; return a Subject as it is.

    Raises TypeError for anything else.
    """
    if isinstance(target, Subject):
        return target if traits is None else Subject(target.make, traits, target.name)
    if not callable(target):
        raise TypeError(f"{target!r} is a {type(target).__name__}: expected a GradScaler class or make(rule)")
    words = [getattr(target, "__module__", ""), getattr(target, "__qualname__", type(target).__name__)]
    make = _from_class(target) if isinstance(target, type) else target
    return Subject(make, traits or Traits(), name or ":".join(filter(None, words)))  # as `load` takes it


def _from_class(cls: type) -> Maker:
    """Make a maker of a class: by torch's names where its constructor has them, else the rule itself is passed."""
    names = inspect.signature(cls).parameters
    if "init_scale" not in names:
        return cls
    device = {"device": "cpu"} if "device" in names else {}
    return lambda rule: cls(**device, **{name: getattr(rule, name) for name in CONSTANTS})


def find(target: str, **declared: Any) -> Subject:
    """Return the Subject that ``module:attribute`` names, with these traits declared on top of its own."""
    subject = as_subject(load(target))
    without = subject.traits.without | declared.pop("without", frozenset())
    return Subject(subject.make, replace(subject.traits, **declared, without=without), target)


def load(target: str) -> object:
    """Return what ``module:attribute`` names; raise ValueError with the closest name for what is not there."""
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise ValueError(f"{target!r}: expected module:attribute, e.g. torch.amp:GradScaler")
    found = _import(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            public = [each for each in dir(found) if not each.startswith("_")]
            raise ValueError(f"{target!r}: {module_name} has no {name!r}; {nearest(name, public)}")
        found = getattr(found, name)
    return found


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"{name}: {error}; install what it needs") from error
        raise ValueError(f"no module {error.name!r}; run from its folder, or install it") from error
    except (Exception, SystemExit) as error:
        call = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"importing {name} raised {type(error).__name__}: {error} ({call.filename}:{call.lineno}); "
            "expected a module that can be imported"
        ) from error


class FromFlag:
    """torch's methods around a scaler that is only told whether an iteration overflowed.

    For scalers that are a state machine and leave the gradients to others: `scale` returns the loss scale, and
    `update` is called with found_inf once per iteration. Divides, then checks; refuses nothing.

    >>> from ampsim import Rule, init, update
    >>> import torch
    >>> class Mine:
    ...     def __init__(self, rule):
    ...         self.rule, self.state = rule, init(rule)
    ...     def update_scale(self, overflow):
    ...         self.state = update(self.rule, self.state, overflow)
    >>> def make(rule):
    ...     mine = Mine(rule)
    ...     return FromFlag(lambda: mine.state.scale, mine.update_scale)
    >>> make(Rule(init_scale=4.0)).scale(torch.tensor(2.0))
    tensor(8.)
    """

    without = frozenset({*FEATURES} - {"fused", "step_value", "unscale_"})
    """The features that a scaler with this adapter lacks, for ``Traits(without=...)``."""

    def __init__(self, scale: Callable[[], float], update: Callable[[bool], object]) -> None:
        self._scale, self._update = scale, update
        self._found: dict[torch.optim.Optimizer, bool] = {}  # optimizer -> whether a gradient was inf or NaN

    def get_scale(self) -> float:
        """Return the loss scale."""
        return float(self._scale())

    def scale(self, outputs: Any) -> Any:
        """Multiply a loss, or each of a list or tuple of losses, by the scale."""
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(map(self.scale, outputs))
        import torch

        return outputs * torch.tensor(self.get_scale(), dtype=torch.float32)

    def unscale_(self, optimizer: "torch.optim.Optimizer") -> None:
        """Divide the gradients by the scale, and note whether all are finite."""
        params = [param for group in optimizer.param_groups for param in group["params"]]
        grads = [param.grad for param in params if param.grad is not None]
        for grad in grads:
            grad.div_(self.get_scale())
        self._found[optimizer] = not all(bool(grad.isfinite().all()) for grad in grads)

    def step(self, optimizer: "torch.optim.Optimizer", *args: Any, **kwargs: Any) -> float | None:
        """Step unless a gradient of this optimizer was inf or NaN."""
        if optimizer not in self._found:
            self.unscale_(optimizer)
        return None if self._found[optimizer] else optimizer.step(*args, **kwargs)

    def update(self) -> None:
        """Update the scaler with whether any optimizer of this iteration had an inf or NaN."""
        found, self._found = self._found, {}
        self._update(any(found.values()))
