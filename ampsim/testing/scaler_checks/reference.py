"""What checks expect: the reference state machine, and the pure model of torch's protocol."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ampsim.core.machine import Rule, init, override, round_to_float32, update
from ampsim.core.torch_model import protocol
from ampsim.core.torch_model.protocol import Optimizer, Outcome
from ampsim.testing.scaler_checks.traits import Traits


def scales(
    traits: Traits,
    found_inf: Sequence[Any],
    overrides: Mapping[int, float] | None = None,
    **constants: float,
) -> list[float]:
    """Return the loss scale of each iteration, and of the one after them, as a float32 loss has it.

    Args:
        traits: Those of the scaler.
        found_inf: Overflow flag of each iteration, or one flag per optimizer.
        overrides: Iteration -> the new scale that is set before it.
        constants: Fields of the rule that the scaler is made for.
    """
    rule = traits.follows(Rule(**constants))  # type: ignore[arg-type]
    state, used = init(rule), list[float]()
    for number, flags in enumerate([*found_inf, False]):
        if overrides and number in overrides:
            state = override(rule, state, overrides[number])
        is_wide = traits.scale_dtype != "float32"
        used.append(round_to_float32(state.scale) if is_wide else state.scale)
        state = update(rule, state, flags if isinstance(flags, bool) else any(flags))
    return used


def calls(
    traits: Traits, rule: Mapping[str, Any], events: Sequence[tuple[str, int]]
) -> "list[Due | None]":
    """Return what each call should do; None where torch's answer is one of several correct ones."""
    model = Model(traits.follows(Rule(**rule)), drop_in=traits.drop_in)
    return [model.call(event, i) for event, i in events]


class Due(NamedTuple):
    """What a call should do.

    Attributes:
        raises: Repr of torch's exception; None for none.
        scale: Loss scale after the call.
        steps: Optimizer steps in the call; None if the call has no optimizer.
        gradient: Gradient after the call, if the call has an optimizer.
        is_late: Whether the scale has changed since the gradient was computed. Then the call may raise, and nothing is
            known of the calls after it.
    """

    raises: str | None
    scale: float
    steps: int | None = None
    gradient: list[float] | None = None
    is_late: bool = False


class Model:
    """torch's protocol for a scaler and two optimizers, with what each call should do."""

    def __init__(self, rule: Rule, *, drop_in: bool) -> None:
        self.state, self.drop_in = protocol.create(rule), drop_in
        self.gradients: dict[int, np.ndarray | None] = dict.fromkeys((0, 1))
        self.scales: dict[int, float] = {}  # of the gradients
        self.has_loss = False  # scaled since the last update

    def call(self, event: str, i: int) -> Due | None:
        """Apply one event to optimizer i; None where torch's answer is one of several correct ones."""
        if not (self._is_settled(event, i) or self.drop_in):
            return None
        scale = self.state.state.scale
        if event in ("clean", "inf", "none"):
            self.scales[i], self.gradients[i] = scale, gradient_of(event, scale)
            return Due(None, scale)
        is_late = event in ("unscale_", "step") and self.scales.get(i) != scale
        outcome = self._apply(event, i)
        steps, gradient = None, None
        if outcome.optimizer is not None:
            (after,) = outcome.optimizer.grads
            self.gradients[i] = after
            steps, gradient = int(outcome.called), None if after is None else after.tolist()
        refusal = outcome.refusal
        raises = f"{refusal.kind.__name__}({refusal.text!r})" if refusal else None
        return Due(raises, self.state.state.scale, steps, gradient, is_late)

    def _is_settled(self, event: str, i: int) -> bool:
        """Return whether the other checks settle what an event does.

        They do not where there is no gradient or no loss, or no loss was ever scaled, and where a gradient is replaced
        after it was checked.
        """
        is_update = event.startswith("update")
        self.has_loss = event == "scale" or (self.has_loss and not is_update)
        if is_update:
            return self.state.exists
        if event in ("clean", "inf", "none"):
            return self.state.record(i).stage is not protocol.Stage.UNSCALED
        needs_gradient = event in ("unscale_", "step")
        return not needs_gradient or (self.has_loss and self.gradients[i] is not None)

    def _apply(self, event: str, i: int) -> Outcome:
        if event == "scale":
            self.state, outcome = protocol.scale(self.state, np.ones((), np.float32))
        elif event.startswith("update"):
            new_scale = 8.0 if event == "update(8.0)" else None
            self.state, outcome = protocol.update(self.state, new_scale)
        else:
            call = getattr(protocol, event)
            self.state, outcome = call(self.state, Optimizer(i, (self.gradients[i],)))
        return outcome


def gradient_of(event: str, scale: float) -> np.ndarray | None:
    """Return the gradient that an event writes, at a loss scale."""
    if event == "none":
        return None
    gradient = np.full(3, 0.3 * scale, np.float32)
    gradient[2] = math.inf if event == "inf" else gradient[2]
    return gradient
