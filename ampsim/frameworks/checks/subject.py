"""Wraps an adapter as a scaler with torch's names for the conformance suite, with the rule of its
dialect.

Fixed constants and bounds of the framework apply. If the framework accepts min_scale and
hysteresis, they are checked too. If it raises where its dialect raises, the example ends.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ampsim.core import dialects
from ampsim.core.machine import Rule
from ampsim.core.replay.fold import states
from ampsim.frameworks.adapter import Adapter, Step
from ampsim.testing.construction import CONSTANTS
from ampsim.testing.scaler_checks.adapter import ScalerAdapter
from ampsim.testing.scaler_checks.subject import Subject
from ampsim.testing.scaler_checks.traits import FEATURES, Traits

FACTORS = ("growth_factor", "backoff_factor")
FLOOR = 0.25  # asked of an adapter that takes one; where it ends the run, a run may be short
REFILL = frozenset({"clean", "backoff"})  # of an adapter without a dialect
# Of FEATURES, what an adapter may have.
HAS = {
    "factors",
    "gradients",
    "growth",
    "gives_up",
    "misuse_errors",
    "steps",
    "state_dict",
}


class UnaskableError(BaseException):
    """Raised to end an example without an outcome; no check catches it."""


class RefusedError(Exception):
    """Raised if the adapter or its dialect does not accept the constants."""


class GaveUpError(Exception):
    """Raised if the adapter raises where its dialect raises."""


@dataclass(frozen=True, kw_only=True)
class AdapterTraits(Traits):
    """Traits of an adapter, from its dialect.

    Attributes:
        fixed: Factors that `start` does not accept, with their values.
        one_factor: Whether growth and backoff use one factor and its inverse.
    """

    fixed: Mapping[str, float] = field(default_factory=dict)
    one_factor: bool = False

    def possible(self, rule: Rule) -> Rule:
        rule = super().possible(rule).replace(**self.fixed)
        if self.one_factor:
            factor = max(rule.growth_factor, 1 / rule.backoff_factor)
            rule = rule.replace(growth_factor=factor, backoff_factor=1 / factor)
        return rule


class Driven:
    """A started scaler of an adapter, with torch's names."""

    def __init__(
        self,
        adapter: Adapter,
        given: Mapping[str, Any],
        rule: Rule | None,
        unsupported: frozenset[str],
    ) -> None:
        self.adapter = adapter
        self.rule = rule
        self.unsupported = unsupported
        self.fed: list[bool] = []
        try:
            self._ask("start", **given)
        except Exception as error:
            raise named(type(error).__name__, RefusedError)(str(error)) from error

    def get_scale(self) -> float:
        return float(self._ask("get_scale"))

    def scale_loss(self, loss: float) -> float:
        return float(self._ask("scale_loss", loss))

    def step(self, scaled: Sequence[float]) -> Step:
        self.fed.append(not all(map(math.isfinite, scaled)))
        try:
            return self._ask("step", scaled)  # type: ignore[no-any-return]
        except Exception as error:
            if gives_up(self.rule, self.fed):
                raise named(type(error).__name__, GaveUpError)(str(error)) from error
            raise

    def state_dict(self) -> Any:
        # A checkpoint is no view of what runs on.
        return json.loads(json.dumps(self._ask("state_dict")))

    def load_state_dict(self, state: object) -> None:
        self._ask("load_state_dict", state)

    def _ask(self, call: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.adapter, call)(*args, **kwargs)
        except NotImplementedError as error:
            raise UnaskableError(str(error)) from None
        except AssertionError as error:  # the package's own, which breaks no check
            raise named("AssertionError", Exception)(str(error)) from error


class StepAdapter(ScalerAdapter):
    """Drives a framework's scaler by `Adapter.step`, with three gradients of 1 once scaled."""

    def loss_scale(self, scaler: Driven) -> float:
        return scaler.scale_loss(1.0)

    def iterate(
        self, scaler: Driven, *found_inf: bool, optimizers: Sequence[Any] = ()
    ) -> float:
        bad = math.inf if any(found_inf) else 1.0
        return scaler.step((1.0, bad, 1.0)).used

    def run(self, scaler: Driven, found_inf: Sequence[bool]) -> list[float]:
        delay = self.traits.delay
        used = self.iterate_each(scaler, [*found_inf, *[False] * delay])
        return [*used, scaler.get_scale()][delay:]

    def applied(
        self,
        scaler: Driven,
        gradients: Sequence[float],
        fused: bool = False,
        unscales: bool = False,
    ) -> list[float]:
        return [*(scaler.step(gradients).unscaled or [0.0] * len(gradients))]


@cache
def named(name: str, kind: type[Exception]) -> type[Exception]:
    """Return a kind of exception of this name."""
    return type(name, (kind,), {})


def gives_up(rule: Rule | None, found_inf: Sequence[bool]) -> bool:
    """Return whether a rule raises on a history."""
    if rule is None:
        return False
    try:
        for _ in states(rule, found_inf):
            pass
    except Exception:
        return True
    return False


def largest_kept_scale(rule: Rule) -> float | None:
    """Return the largest scale that a rule leaves as it is; None if it has none."""
    asked = max(2.0**100, rule.min_scale or 0.0)
    left = next(states(rule.replace(init_scale=rule.max_scale or asked), [False])).scale
    return rule.max_scale or (left if left < asked else None)


def subject_of(
    adapter: Adapter,
    *,
    hysteresis: int = 1,
    min_scale: float | None = FLOOR,
    without_delay: bool = False,
) -> Subject:
    """Return an adapter as a subject of the conformance suite.

    Args:
        adapter: Adapter to check.
        hysteresis: Asked of the adapter, if it accepts one.
        min_scale: The same; None keeps the adapter's default.
        without_delay: Whether to remove the delay of its dialect from the observed scales.
    """
    known = rule_fields(adapter)
    asked: dict[str, Any] = {}
    if "min_scale" in known and min_scale is not None:
        asked["min_scale"] = min_scale
    if "hysteresis" in known:
        asked["hysteresis"] = hysteresis
    rule = dialect_rule(adapter, start_arguments(adapter, asked))
    follows = rule or Rule()
    free = (*known, *_paired_factors(known))
    fixed = {each: getattr(follows, each) for each in FACTORS if each not in free}
    lacks = {*FEATURES} - HAS | _lacking(adapter) | ({"factors"} if fixed else set())
    low = follows.min_scale
    if low is not None:
        low = asked.get("min_scale", low)
    traits = AdapterTraits(
        min_scale=low,
        max_scale=largest_kept_scale(follows),
        scale_dtype=follows.arithmetic.dtype,
        hysteresis=follows.hysteresis,
        hysteresis_reset=follows.hysteresis_reset if adapter.dialect else REFILL,
        gives_up=(GaveUpError,) * gives_up(rule, [True] * 300),
        delay=follows.delay if without_delay else 0,
        supported=frozenset({"misuse_errors"}),
        unsupported=frozenset(lacks),
        fixed=fixed,
        one_factor="factor" in known,
    )

    def make(rule: Rule) -> Driven:
        four = {name: getattr(rule, name) for name in CONSTANTS}
        given = start_arguments(adapter, {**four, **asked})
        return Driven(adapter, given, dialect_rule(adapter, given), frozenset(lacks))

    return Subject(make, traits, adapter.name, StepAdapter)


def rule_fields(adapter: Adapter) -> Mapping[str, str]:
    """Return field of `Rule` ('factor' for both factors) -> name of the parameter of `start`."""
    if not adapter.dialect:
        return {field: name for name, field in adapter.constants.items()}
    known = dialects.ALL[adapter.dialect].parameters
    return {
        known[theirs]: name
        for name, theirs in adapter.constants.items()
        if theirs in known
    }


def start_arguments(adapter: Adapter, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `start` for fields of `Rule`; raise UnaskableError for a fixed field."""
    known = rule_fields(adapter)
    given = {}
    for each, value in wanted.items():
        if each in known:
            given[known[each]] = value
        elif each in _paired_factors(known):
            if each == "growth_factor":
                given[known["factor"]] = value
            elif wanted.get("growth_factor", 2.0) == 2.0:
                given[known["factor"]] = 1 / value if value else math.inf
        elif getattr(dialect_rule(adapter, {}) or Rule(), each) != value:
            raise UnaskableError(f"{each} is fixed")
    return given


def dialect_rule(adapter: Adapter, given: Mapping[str, Any]) -> Rule | None:
    """Return the rule of the dialect (default: torch's) for the arguments of `start`.

    None if the dialect does not accept the constants.
    """
    asked = {adapter.constants[key]: value for key, value in given.items()}
    try:
        if not adapter.dialect:
            return Rule(**asked)
        return dialects.get(adapter.dialect, **{**adapter.options, **asked})
    except (TypeError, ValueError):
        return None


def _paired_factors(known: Mapping[str, str]) -> tuple[str, ...]:
    return FACTORS if "factor" in known else ()


def _lacking(adapter: Adapter) -> set[str]:
    """Return the features that an adapter lacks in one finite iteration."""
    adapter.start()
    step = adapter.step((1.0, 1.0))
    seen = {"gradients": bool(step.unscaled), "steps": step.stepped is not None}
    lacks = {name for name, has in seen.items() if not has}
    try:
        adapter.state_dict()
    except NotImplementedError:
        lacks.add("state_dict")
    return lacks
