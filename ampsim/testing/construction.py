"""Arguments to create any scaler with: torch's where the target takes them, else a rule."""

import inspect
from collections.abc import Callable
from typing import Any

from ampsim.core.machine import Rule

CONSTANTS = (
    "init_scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
)  # of torch's
WRITE_MAKE = (  # advice for a class that has other parameters than torch's
    "expected a function such as def make(rule): return {}(rule.init_scale, rule.growth_factor, "
    "rule.backoff_factor, rule.growth_interval), passed as module:make"
)
Maker = Callable[..., Any]
Arguments = dict[str, Any]


def maker_of(target: Maker) -> Maker:
    """Return a function of a rule, and of `enabled` if the target takes it, that makes a scaler."""
    arguments = arguments_of(target)
    if arguments is None:
        return target

    def make(rule: Rule, *, enabled: bool = True) -> Any:
        return target(**arguments(rule, enabled=enabled))

    return make if "enabled" in arguments(Rule()) else lambda rule: make(rule)


def arguments_of(target: Maker) -> Callable[..., Arguments] | None:
    """Return a function of a rule and `enabled` that gives torch's arguments; None if the target
    takes a rule.

    Raises:
        TypeError: It is not clear what a class takes.
    """
    names, takes_more = parameters(target)
    is_class = isinstance(target, type)
    hides = is_class and takes_more
    if "init_scale" not in names and (not hides or {*names} - {"device", "enabled"}):
        first = next(iter(names.values()), None)
        # A rule has no default; the first parameter is a setting with a name of its own.
        if is_class and first and first.default is not first.empty:
            raise TypeError(
                f"{target.__qualname__} has neither a parameter init_scale nor a rule as its "
                f"first parameter: {WRITE_MAKE.format(target.__name__)}"
            )
        return None

    def arguments(rule: Rule, *, enabled: bool = True) -> Arguments:
        constants = {name: getattr(rule, name) for name in CONSTANTS}
        given = {"device": "cpu", **constants, "enabled": enabled}
        return {
            name: value for name, value in given.items() if takes_more or name in names
        }

    return arguments


def parameters(target: Maker) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return what a callable takes, by name, and whether it takes anything more.

    A class that passes on ``*args`` or ``**kwargs`` also takes what the next class with a
    constructor takes.
    """
    found: dict[str, inspect.Parameter] = {}
    classes = target.__mro__[:-1] if isinstance(target, type) else ()
    makers: list[Maker] = [
        each for each in classes if {"__init__", "__new__"} & vars(each).keys()
    ]
    for maker in makers or [target]:
        try:
            own = inspect.signature(maker).parameters
        except (TypeError, ValueError):  # written in C, without a signature
            return found, False
        named = {name: each for name, each in own.items() if not _is_variadic(each)}
        found |= {name: each for name, each in named.items() if name not in found}
        if len(named) == len(own):
            return found, False
    return found, True


def _is_variadic(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
