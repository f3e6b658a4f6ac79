"""What the settings on a command line may be, so that no experiment checks its own.

A number is above 0, a list has different items and at least one. What a field's type and name do
not say, it says itself: `Annotated[int, FROM_0]`, of a list of each item. The settings in the
source are their author's business.
"""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from experiments.runner.experiment import Config, UsageError


@dataclass(frozen=True)
class Expected:
    """A condition on a value: in words, and as a function of the value and all settings."""

    words: str
    holds: Callable[[Any, Any], bool]


COUNT = Expected("a whole number of at least 1", lambda value, _: value >= 1)
POSITIVE = Expected("a finite number above 0", lambda value, _: 0 < value < math.inf)
FROM_0 = Expected("a finite number from 0", lambda value, _: 0 <= value < math.inf)
BEFORE_THE_END = Expected(
    "a step from 0 and below steps", lambda value, config: 0 <= value < config.steps
)
EXPONENT = Expected(
    "the exponent of a normal float32, from -126 to 127",
    lambda value, _: -126 <= value <= 127,
)
SEED = Expected("a seed from 0 to 2^32 - 1", lambda value, _: 0 <= value < 2**32)


def one_of(names: Collection[str]) -> Expected:
    """Return the condition that a text is one of these."""
    return Expected(f"one of {', '.join(names)}", lambda value, _: value in names)


def check(config: Config) -> None:
    """Raise for invalid settings.

    Raises:
        UsageError: A setting is invalid; the message has its value, the expected values, and the
            default.
    """
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        value = getattr(config, name)
        if wanted := _instead(value, hint, _expected_by_name(name), config):
            raise UsageError(
                f"{name}={value}: expected {wanted}; the default is {getattr(type(config)(), name)}"
            )


def _expected_by_name(name: str) -> Expected | None:
    if name.endswith("_log2"):
        return EXPONENT
    return SEED if name == "seeds" else None


def _instead(value: Any, hint: Any, expected: Expected | None, config: Config) -> str:
    """Return what was expected instead of a value, in words; empty if it is good."""
    if get_origin(hint) is Annotated:
        hint, expected = get_args(hint)
    items: Iterable[Any] = get_args(hint)
    if get_origin(hint) is tuple and ... in items:
        if not value or len(set(value)) < len(value):
            return "one or more different values"
        items = get_args(hint)[:1] * len(value)
    elif isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple
        items = get_type_hints(hint).values()
    if isinstance(value, tuple):
        each = (
            _instead(item, kind, expected, config)
            for item, kind in zip(value, items, strict=True)
        )
        return next(filter(None, each), "")
    expected = expected or {int: COUNT, float: POSITIVE}.get(hint)
    return "" if expected is None or expected.holds(value, config) else expected.words
