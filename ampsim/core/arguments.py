"""Refusals: every message shows the value, what was expected, and the cure."""

import difflib
import math
import numbers
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampsim.core.machine import Rule


def number(name: str, value: Any) -> float:
    """`value` as a float; bool, str and everything else that is no real number raise TypeError."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"{name}={value!r} is a {type(value).__name__}: expected a real number; pass a float such as 2.0"
        )
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is beyond every float: expected a finite number; pass one below 1e308") from None


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse what is none of the choices."""
    if value not in choices:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, choices))}")


def whole(name: str, value: Any, least: int, cure: str) -> int:
    """`value` as an int of at least `least`; a float or bool raises TypeError."""
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or isinstance(value, bool):
        raise TypeError(
            f"{name}={value!r} is a {type(value).__name__}: expected a whole number; pass an int such as 2000"
        )
    if count < least:
        raise ValueError(f"{name}={value!r}: expected at least {least}; {cure}")
    return count


def check_rule(rule: "Rule") -> None:
    """Refuse a rule that no run could want."""
    if not hasattr(rule.arithmetic, "back_off"):
        raise TypeError(
            f"arithmetic={rule.arithmetic!r}: expected an ampsim.core.machine.Arithmetic; torch's is the default"
        )
    for name in ("init_scale", "growth_factor", "backoff_factor", "min_scale", "max_scale"):
        value = getattr(rule, name)
        if value is not None:
            number(name, value)
        elif name not in ("min_scale", "max_scale"):
            raise TypeError(f"{name}=None: expected a real number; leave it out to take the default")
    _check_scales(rule)
    _check_factors(rule)
    whole("growth_interval", rule.growth_interval, 1, "to never grow pass growth_factor=1.0")
    whole("hysteresis", rule.hysteresis, 1, "to back off at every overflow pass hysteresis=1")
    whole("delay", rule.delay, 0, "to use each scale at once pass delay=0")
    check_choice("growth_test", rule.growth_test, ("==", ">="))
    _check_pieces(rule)


def _check_pieces(rule: "Rule") -> None:
    from ampsim.core.machine import Quirk

    if not isinstance(rule.quirks, (tuple, list)) or not all(isinstance(quirk, Quirk) for quirk in rule.quirks):
        raise TypeError(f"quirks={rule.quirks!r}: expected a tuple of ampsim.core.quirks; for none pass ()")
    refill = rule.hysteresis_refill
    known = {"clean", "growth", "backoff"}
    if not isinstance(refill, (set, frozenset, list, tuple)) or not all(item in known for item in map(str, refill)):
        raise ValueError(
            f"hysteresis_refill={rule.hysteresis_refill!r}: expected a set of 'clean', 'growth', 'backoff'; "
            "Megatron's is frozenset({'growth'})"
        )


def _check_scales(rule: "Rule") -> None:
    if not (math.isfinite(rule.init_scale) and rule.init_scale > 0):
        raise ValueError(f"init_scale={rule.init_scale!r}: expected a positive finite number; torch starts at 2.0**16")
    held = rule.arithmetic.round(rule.init_scale)
    if not (math.isfinite(held) and held > 0):
        raise ValueError(
            f"init_scale={rule.init_scale!r} is {held} in {rule.arithmetic.dtype}: expected a number that "
            "format can hold; pass one between 2.0**-126 and 2.0**127"
        )
    low = None if rule.min_scale is None else rule.arithmetic.round(rule.min_scale)  # as the format holds them
    high = None if rule.max_scale is None else rule.arithmetic.round(rule.max_scale)
    if low is not None and (math.isnan(low) or low < 0 or math.isinf(low)):
        raise ValueError(f"min_scale={rule.min_scale!r}: expected a finite number >= 0; for no floor pass None")
    if high is not None and not high > 0:
        raise ValueError(f"max_scale={rule.max_scale!r}: expected a positive number; for no ceiling pass None")
    if low is not None and high is not None and low > high:
        raise ValueError(
            f"min_scale={rule.min_scale!r} > max_scale={rule.max_scale!r}: expected min_scale <= max_scale; "
            "swap them, or pass None for the bound that is not wanted"
        )


def _check_factors(rule: "Rule") -> None:
    growth, backoff = rule.growth_factor, rule.backoff_factor
    if not (math.isfinite(growth) and growth >= 1):
        raise ValueError(
            f"growth_factor={growth!r}: expected a finite number >= 1; to never grow pass growth_factor=1.0"
        )
    if not 0 < backoff <= 1:
        raise ValueError(
            f"backoff_factor={backoff!r}: expected a number in (0, 1]; to never back off pass backoff_factor=1.0"
        )
    if rule.arithmetic.backoff != "multiply" and backoff != 1.0 / growth:
        raise ValueError(
            f"backoff_factor={backoff!r} with a backoff that divides by growth_factor={growth!r}: "
            f"expected {1.0 / growth!r}; leave arithmetic at its default to choose the two factors apart"
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an 'unknown name' message: the closest known names, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"expected one of {', '.join(known)}"
