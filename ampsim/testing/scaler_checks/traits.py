"""Declared, intended differences of a scaler from torch's."""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ampsim.core.formats import far_power
from ampsim.core.machine import Arithmetic, Rule
from ampsim.core.validation import check_choice, nearest

FEATURES = {
    "enabled": "make(rule, enabled=False), or a class with torch's `enabled`: a scaler that does nothing",
    "factors": "a growth factor and a backoff factor other than 2 and 1/2",
    "gradients": "dividing gradients; some scalers leave that to the caller",
    "fused": "fused optimizers, which check and unscale in their own kernel",
    "float16": "an error for float16 gradients, which underflow again if unscaled",
    "gives_up": "an exception of update() instead of a scale below min_scale: `Traits.gives_up`",
    "growth": "a scale that changes; see `Traits.static`",
    "optimizers": "more than one optimizer",
    "override": "update(new_scale)",
    "pickle": "pickling between iterations",
    "misuse_errors": "misuse raises immediately and does not change the scaler",
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
# Checked of subclasses of torch's scaler, and of scalers that claim them.
CLAIMED = frozenset({"float16", "misuse_errors", "threads"})
SKIPS = ("each", "all")
DTYPES = ("float32", "float64")
EVENTS = ("clean", "growth", "backoff")
WORDS = (*SKIPS, *DTYPES, *EVENTS, *sorted(CLAIMED))
"""Values of traits that are words."""
NO_OPTION = ("gives_up", "unsupported")  # traits without ``--trait NAME=VALUE``


def shown(value: object) -> str:
    """Write the value of a trait: ``2**24`` for a power of two that is far from 1, a set with
    commas.
    """
    if isinstance(value, frozenset):
        return ",".join(sorted(value)) or "none"
    power = far_power(value, 20) if isinstance(value, float) else None
    return power or str(value)


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Declared, intended differences of a scaler from torch's. An undeclared difference fails a
    check.

    Attributes:
        min_scale: Smallest scale after a backoff; None for no bound.
        max_scale: Largest scale after a growth; None for no bound.
        scale_dtype: Precision of the scale between updates.
        drop_in: Whether errors must have torch's types and texts, and gradients torch's exact bits.
        hysteresis: Number of overflows needed to trigger a backoff; at least 1.
        hysteresis_reset: Events that reset the hysteresis: "clean" (a finite step), "growth",
            "backoff"; several as "backoff,clean" or a set; None for no event.
        powers_of_two: Whether all scales and factors are powers of two.
        static: Whether the scale never changes.
        delay: Updates between the computation of a scale and its first use.
        skips: "each" if an overflow skips only its own optimizer, "all" if it skips every
            optimizer.
        gives_up: Exceptions that `update` raises instead of going below `min_scale`.
        supported: Features of `CLAIMED` that the scaler has although it does not inherit from
            torch's scaler. With `drop_in`, it has all of them.
        unsupported: Features, from `FEATURES`, that the scaler does not support.

    Raises:
        ValueError: A feature is not in `FEATURES`; the text has the closest name.
    """

    min_scale: float | None = None
    max_scale: float | None = None
    scale_dtype: Literal["float32", "float64"] = "float32"
    drop_in: bool = False
    hysteresis: int = 1
    hysteresis_reset: str | frozenset[str] | None = frozenset({"growth"})
    powers_of_two: bool = False
    static: bool = False
    delay: int = 0
    skips: Literal["each", "all"] = "each"
    gives_up: tuple[type[Exception], ...] = ()
    supported: frozenset[str] = field(default_factory=frozenset)
    unsupported: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        check_choice("skips", self.skips, SKIPS)
        check_choice("scale_dtype", self.scale_dtype, DTYPES)
        reset = self.hysteresis_reset
        reset = frozenset(reset.split(",") if isinstance(reset, str) else reset or ())
        for event in reset:
            check_choice("hysteresis_reset", event, EVENTS)
        object.__setattr__(self, "hysteresis_reset", reset)
        for each, known in (("unsupported", FEATURES), ("supported", sorted(CLAIMED))):
            features = frozenset(getattr(self, each))
            object.__setattr__(self, each, features)
            for name in sorted(features - {*known}):
                raise ValueError(
                    f"{each}={name!r}: no such feature; {nearest(name, known)}"
                )

    def differences(self) -> dict[str, Any]:
        """Return the traits that differ from torch's."""
        values = {each.name: getattr(self, each.name) for each in fields(Traits)}
        return {
            name: value
            for name, value in values.items()
            if value != getattr(Traits(), name)
        }

    def as_options(self) -> list[str]:
        """Return the options of ``ampsim check`` that declare these traits; `gives_up` has none."""
        options = []
        for name, value in self.differences().items():
            if name not in NO_OPTION:
                options += ["--trait", f"{name}={shown(value)}"]
        for name in sorted(self.unsupported):
            options += ["--unsupported", name]
        return options

    def possible(self, rule: Rule) -> Rule:
        """Return the closest rule that the scaler supports."""
        if "factors" in self.unsupported:
            rule = rule.replace(growth_factor=2.0, backoff_factor=0.5)
        return rule.replace(
            init_scale=self.within(rule.init_scale),
            growth_factor=self.fitted(rule.growth_factor),
            backoff_factor=self.fitted(rule.backoff_factor),
        )

    def within(self, scale: float) -> float:
        """Return the closest scale that the scaler supports, within its bounds."""
        top = self.max_scale or (math.inf if self.scale_dtype == "float32" else 2.0**64)
        return self.fitted(max(self.min_scale or 0.0, min(top, scale)))

    def fitted(self, factor: float) -> float:
        """Return a factor as the scaler supports it: for `powers_of_two` the nearest one."""
        return 2.0 ** round(math.log2(factor)) if self.powers_of_two else float(factor)

    def follows(self, rule: Rule) -> Rule:
        """Return the rule that a scaler with these traits follows if it is made for `rule`."""
        rule = self.possible(rule)
        if self.static:
            rule = rule.replace(growth_factor=1.0, backoff_factor=1.0)
        return rule.replace(
            hysteresis_reset=self.hysteresis_reset,
            min_scale=self.min_scale,
            max_scale=self.max_scale,
            hysteresis=self.hysteresis,
            delay=self.delay,
            arithmetic=Arithmetic(dtype=self.scale_dtype),
        )
