"""A scaler of ranks by its name: a function make(group), or a class with torch's constructor."""

import inspect
from typing import Any

from ampsim.testing.kit.subject import load
from ampsim.testing.ranks.scenario import Make

GROUPS = ("process_group", "group")  # what a constructor may call it


def find(target: str) -> tuple[Make, str]:
    """Return what makes a rank's scaler, given its group, and the same as an expression, of the group of all ranks.

    Args:
        target: ``module:attribute`` of ``make(group)``, or of a class with torch's constructor; it is given the group
            if it has a place for one.
    """
    found: Any = load(target)
    path, names = target.partition(":")[2], inspect.signature(found).parameters
    if not {"device", "init_scale", "growth_interval"} <= {*names}:
        return found, f"{path}(dist.group.WORLD)"
    place = next((name for name in GROUPS if name in names), None)
    text = 'device="cpu", init_scale=1024.0, growth_interval=2' + f", {place}=dist.group.WORLD" * (place is not None)

    def make(group: Any) -> Any:
        return found(device="cpu", init_scale=1024.0, growth_interval=2, **({place: group} if place else {}))

    return make, f"{path}({text})"
