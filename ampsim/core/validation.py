"""Argument validation. A message shows the value, what was expected, and the fix."""

import difflib
import math
import numbers
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import SupportsIndex, TypeVar, cast

T = TypeVar("T")
TEXT = (str, bytes, bytearray)


def as_float(name: str, value: object) -> float:
    """Return `value` as a float; raise TypeError unless it is a real number (bool is not)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"{name}={value!r} has type {type(value).__name__}: expected a real number; pass a float such as 2.0"
        )
    try:
        return float(value)
    except OverflowError:
        raise ValueError(
            f"{name} is beyond every float: expected a finite number; pass one below 1e308"
        ) from None


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of the choices."""
    if value not in choices:
        raise ValueError(
            f"{name}={value!r}: expected one of {', '.join(map(repr, choices))}"
        )


def as_int(name: str, value: object, least: int, fix: str) -> int:
    """Return `value` as an int of at least `least`; raise TypeError for a float or bool."""
    try:
        count = operator.index(cast("SupportsIndex", value))
    except TypeError:
        count = None
    if count is None or isinstance(value, bool):
        raise TypeError(
            f"{name}={value!r} has type {type(value).__name__}: expected a whole number; pass an int such as 2000"
        )
    if count < least:
        raise ValueError(f"{name}={value!r}: expected at least {least}; {fix}")
    return count


def flags(name: str, values: Iterable[T]) -> Iterator[T]:
    """Yield flags, which are used by their truth value; raise TypeError for text, as "0" is true."""
    for value in [values] if isinstance(values, TEXT) else values:
        if isinstance(value, TEXT):
            raise TypeError(
                f"{name}: {value!r} has type {type(value).__name__}: expected one flag per update; "
                "pass [digit == '1' for digit in history]"
            )
        yield value


def check_arithmetic(arithmetic: object) -> None:
    """Raise TypeError for an object without `back_off`."""
    if not hasattr(arithmetic, "back_off"):
        raise TypeError(
            f"arithmetic={arithmetic!r}: expected an ampsim.core.machine.Arithmetic; torch's is the default"
        )


def check_scales(
    init: float,
    low: float | None,
    high: float | None,
    rounded: Callable[[float], float],
    dtype: str,
) -> None:
    """Raise ValueError for an invalid initial scale or bound, after rounding to the scale's format."""
    given = {"init_scale": init, "min_scale": low, "max_scale": high}
    for name, value in given.items():
        if value is not None or name == "init_scale":
            as_float(name, value)
    if not 0 < init < math.inf:
        raise ValueError(
            f"init_scale={init!r}: expected a positive finite number; torch starts at 2.0**16"
        )
    held = rounded(init)
    if not 0 < held < math.inf:
        raise ValueError(
            f"init_scale={init!r} is {held} in {dtype}: expected a number that "
            "format can hold; pass one between 2.0**-126 and 2.0**127"
        )
    least = 0.0 if low is None else rounded(low)
    most = math.inf if high is None else rounded(high)
    if not 0 <= least < math.inf:
        raise ValueError(
            f"min_scale={low!r}: expected a finite number >= 0; for no lower bound pass None"
        )
    if not most > 0:
        raise ValueError(
            f"max_scale={high!r}: expected a positive number; for no upper bound pass None"
        )
    if least > most:
        raise ValueError(
            f"min_scale={low!r} > max_scale={high!r}: expected min_scale <= max_scale; "
            "swap them, or pass None for no bound"
        )


def check_factors(growth: float, backoff: float, *, divides: bool = False) -> None:
    """Raise ValueError for invalid factors; with `divides`, a backoff divides by the growth factor."""
    as_float("growth_factor", growth)
    as_float("backoff_factor", backoff)
    if not 1 <= growth < math.inf:
        raise ValueError(
            f"growth_factor={growth!r}: expected a finite number >= 1; to never grow pass growth_factor=1.0"
        )
    if not 0 < backoff <= 1:
        raise ValueError(
            f"backoff_factor={backoff!r}: expected a number in (0, 1]; to never back off pass backoff_factor=1.0"
        )
    if divides and backoff != 1.0 / growth:
        raise ValueError(
            f"backoff_factor={backoff!r} with a backoff that divides by growth_factor={growth!r}: "
            f"expected {1.0 / growth!r}; to choose the two factors independently, use the default arithmetic"
        )


def check_quirks(quirks: object) -> None:
    """Raise TypeError unless `quirks` is a tuple or list of objects with `update`."""
    if not isinstance(quirks, (tuple, list)) or not all(
        callable(getattr(quirk, "update", None)) for quirk in quirks
    ):
        raise TypeError(
            f"quirks={quirks!r}: expected a tuple of ampsim.core.quirks; for none pass ()"
        )


def check_hysteresis_reset(reset: object) -> None:
    """Raise ValueError unless `reset` is a collection of the three events' names."""
    known = {"clean", "growth", "backoff"}
    if not isinstance(reset, (set, frozenset, list, tuple)) or not all(
        item in known for item in map(str, reset)
    ):
        raise ValueError(
            f"hysteresis_reset={reset!r}: expected a set of 'clean', 'growth', 'backoff'; "
            "Megatron's is frozenset({'growth'})"
        )


MANY = 30
"""Maximum number of names that an 'unknown name' message lists: of more, the nearest three."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an 'unknown name' message: the closest names, or all known names."""
    name = str(name)
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    close = close or [
        other for other in known if len(name) > 2 and name.lower() in other.lower()
    ]
    if len(known) > MANY:
        close = close or difflib.get_close_matches(name, known, n=3, cutoff=0)
    if close:
        return f"did you mean {' or '.join(map(repr, close[:5]))}?"
    return f"expected one of {', '.join(known)}"
