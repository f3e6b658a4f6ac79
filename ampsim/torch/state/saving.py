"""A scaler as a dict: torch's five keys, and with depth > 0 the scales that wait for their turn."""

from typing import Any

from ampsim.core.arguments import whole
from ampsim.core.machine import Rule, State
from ampsim.torch import config

CONSTANTS = ("growth_factor", "backoff_factor", "growth_interval")


def to_dict(rule: Rule, states: tuple[State, ...], depth: int) -> dict[str, Any]:
    """`states`: the one that the next ticket carries, and every newer one."""
    saved: dict[str, Any] = {
        "scale": states[0].scale,
        **{name: getattr(rule, name) for name in CONSTANTS},
        "_growth_tracker": states[-1].growth_tracker,
    }
    return saved | ({"pending": [state.scale for state in states[1:]]} if depth else {})


def from_dict(saved: dict[str, Any], rule: Rule, *, exact_torch: bool) -> tuple[Rule, tuple[State, ...]]:
    """The rule and the states of `to_dict`; raises before anything is changed.

    Only the newest state's tracker counts: the others are never updated again.
    """
    if len(saved) == 0:
        raise RuntimeError(
            "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
        )
    rule = config.changed(rule, exact_torch=exact_torch, **{name: saved[name] for name in CONSTANTS})
    scales, tracker = [saved["scale"], *saved.get("pending", ())], saved["_growth_tracker"]
    if not exact_torch:
        scales = [config.within_bounds("scale", scale, rule) for scale in scales]
        tracker = whole("_growth_tracker", tracker, 0, "load what state_dict() returned")
    return rule, tuple(State(scale, tracker) for scale in scales)
