"""Arguments to create any scaler with: torch's where the target takes them, else a rule."""

import inspect
from collections.abc import Callable
from typing import Any

from ampsim.core.machine import SETTABLE, Rule

# of torch's constructor
CONSTANTS = ("init_scale", *SETTABLE)
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
    # A class that passes everything on may take torch's arguments, too.
    takes_torchs = is_class and takes_more and {*names} <= {"device", "enabled"}
    if "init_scale" not in names and not takes_torchs:
        first, *_ = [*names.values(), None]
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
        return {name: given[name] for name in given if takes_more or name in names}

    return arguments


def parameters(target: Maker) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return what a callable takes, by name, and whether it takes anything more.

    A class that passes on ``*args`` or ``**kwargs`` also takes what the next class with a
    constructor takes.
    """
    found: dict[str, inspect.Parameter] = {}
    makers: list[Maker] = [target]
    if isinstance(target, type):
        own = {"__init__", "__new__"}
        makers = [each for each in target.__mro__[:-1] if own & vars(each).keys()]
    for maker in makers or [target]:
        try:
            taken = inspect.signature(maker).parameters
        except (TypeError, ValueError):  # written in C, without a signature
            return found, False
        takes_more = False
        for name, each in taken.items():
            if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
                takes_more = True
            else:
                found.setdefault(name, each)
        if not takes_more:
            return found, False
    return found, True
