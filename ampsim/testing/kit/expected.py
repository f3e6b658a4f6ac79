"""Expected values of checks: scales of the reference state machine, and torch's exceptions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ampsim.core.machine import Rule, init, override, round_to_float32, update
from ampsim.core.torch_model.refusals import Refusal
from ampsim.testing.kit.subject import Traits

Flags = Sequence[Any]  # per iteration: whether it overflows, or which optimizers do


def scales(
    traits: Traits, rule: Rule, found_inf: Flags, overrides: Mapping[int, float] | None = None
) -> list[float]:
    """Return the scale of each iteration, and of the one after them, as a float32 loss sees it.

    Args:
        traits: the scaler's.
        rule: rule of the scaler.
        found_inf: overflow flags, one per iteration.
        overrides: iteration -> new scale, set before that iteration.
    """
    follows = traits.follows(rule)
    state, used = init(follows), []
    for number, each in enumerate([*found_inf, None]):
        if overrides and number in overrides:
            state = override(follows, state, overrides[number])
        used.append(
            state.scale if traits.scale_dtype == "float32" else round_to_float32(state.scale)
        )
        if each is not None:
            state = update(follows, state, each if isinstance(each, bool) else any(each))
    return used


def trajectory(
    traits: Traits, found_inf: Flags, rule: Mapping[str, Any] | None = None, **_: object
) -> list[float]:
    """Return the scales of an overflow sequence; without a rule the growth interval is 3."""
    return scales(traits, Rule(**(rule or {"growth_interval": 3})), found_inf)


def backed_off(traits: Traits, **_: object) -> float | None:
    """Return the scale after an overflow; None for a scaler with a delay."""
    return None if traits.delay else scales(traits, Rule(growth_interval=3), [True])[-1]


def said(refusal: Refusal) -> Callable[..., str]:
    """Return a function that returns the repr of torch's exception."""

    def words(*_: object, **__: object) -> str:
        return f"{refusal.kind.__name__}({refusal.text!r})"

    return words
