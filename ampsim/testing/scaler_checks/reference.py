"""What checks expect: the reference state machine, and torch's own scaler with its scales."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ampsim.core.machine import Rule, init, override, round_to_float32, update
from ampsim.testing.construction import CONSTANTS
from ampsim.testing.scaler_checks.adapter import Scales
from ampsim.testing.scaler_checks.traits import Traits

GRADIENTS = (
    "clean",
    "inf",
    "none",
)  # events that give an optimizer a gradient, or take it


def scales(
    traits: Traits,
    found_inf: Sequence[Any],
    overrides: Mapping[int, float] | None = None,
    **constants: float,
) -> Scales:
    """Return the loss scale of each iteration, and of the one after them, as a float32 loss has it.

    Args:
        traits: Those of the scaler.
        found_inf: Overflow flag of each iteration, or one flag per optimizer.
        overrides: Iteration -> the new scale that is set before it.
        constants: Fields of the rule that the scaler is made for.
    """
    rule = traits.follows(Rule(**constants))  # type: ignore[arg-type]
    state = init(rule)
    used = list[float]()
    for number, flags in enumerate([*found_inf, False]):
        if overrides and number in overrides:
            state = override(rule, state, overrides[number])
        is_wide = traits.scale_dtype != "float32"
        used.append(round_to_float32(state.scale) if is_wide else state.scale)
        state = update(rule, state, flags if isinstance(flags, bool) else any(flags))
    return used


class Due(NamedTuple):
    """What a call should do.

    Attributes:
        raises: Repr of torch's exception; None for none.
        scale: Loss scale after the call.
        steps: Number of optimizer steps in the call.
        gradient: Gradient of the call's optimizer after the call; None for none.
        is_late: Whether the scale has changed since the gradient was computed. Then the call may
            raise, and nothing is known of the calls after it.
    """

    raises: str | None
    scale: float
    steps: int
    gradient: list[float] | None
    is_late: bool


class Reference(torch.amp.GradScaler):
    """torch's scaler, with the scales of a rule of the reference state machine."""

    def __init__(self, rule: Rule) -> None:
        super().__init__("cpu", *(getattr(rule, name) for name in CONSTANTS))
        self.rule, self.machine = rule, init(rule)

    def stage(self, optimizer: torch.optim.Optimizer) -> str:
        """Return the name of an optimizer's stage in the iteration."""
        return str(self._per_optimizer_states[id(optimizer)]["stage"].name)

    def update(self, new_scale: Any = None) -> None:
        states = self._per_optimizer_states.values()
        found = [
            flag.item()
            for each in states
            for flag in each["found_inf_per_device"].values()
        ]
        super().update(new_scale)
        if new_scale is None:
            self.machine = update(self.rule, self.machine, any(found))
        else:
            self.machine = override(self.rule, self.machine, new_scale)
        assert self._scale is not None
        self._scale.fill_(self.machine.scale)


class Program:
    """Two optimizers of one scaler, driven by events: "scale", "clean" (a gradient), "unscale_",
    and so on.
    """

    def __init__(self, scaler: Any) -> None:
        self.scaler = scaler
        self.steps = 0
        self.params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
        self.optimizers = [
            torch.optim.SGD([each], lr=0.125, momentum=0.9) for each in self.params
        ]
        for optimizer in self.optimizers:
            optimizer.register_step_pre_hook(self._count)

    def _count(self, *_: object) -> None:
        self.steps += 1

    def give(self, event: str, i: int, scale: float) -> None:
        """Give optimizer i a "clean" gradient or one with an "inf" at this loss scale, or "none"."""
        last = math.inf if event == "inf" else 0.3 * scale
        gradient = torch.tensor([0.3 * scale, 0.3 * scale, last])
        self.params[i].grad = None if event == "none" else gradient

    def call(self, event: str, i: int) -> str | None:
        """Make a call of the scaler, and return the repr of what it raised."""
        self.steps = 0
        try:
            if event == "scale":
                self.scaler.scale(torch.ones(()))
            elif event.startswith("update"):
                self.scaler.update(*([8.0] if event == "update(8.0)" else []))
            else:
                getattr(self.scaler, event)(self.optimizers[i])
        except Exception as error:
            return repr(error)
        return None

    def gradient(self, i: int) -> list[float] | None:
        """Return the gradient of optimizer i."""
        grad = self.params[i].grad
        return None if grad is None else list(grad.tolist())


def calls(
    traits: Traits, rule: Mapping[str, Any], events: Sequence[tuple[str, int]]
) -> list[Due | None]:
    """Return what each call should do; None where torch's answer is one of several correct ones."""
    scaler = Reference(traits.follows(Rule(**rule)))
    program = Program(scaler)
    scales = dict[int, float]()
    has_scale = has_loss = False
    expected = list[Due | None]()
    for event, i in events:
        has_scale = has_scale or event == "scale"
        has_loss = event == "scale" or (has_loss and not event.startswith("update"))
        # The other checks settle what happens without a gradient or a loss, or with a checked
        # gradient replaced.
        if event.startswith("update"):
            settled = has_scale
        elif event in GRADIENTS:
            settled = scaler.stage(program.optimizers[i]) != "UNSCALED"
        else:
            has_gradient = program.params[i].grad is not None
            settled = event == "scale" or (has_loss and has_gradient)
        if not settled and not traits.drop_in:
            expected.append(None)
            continue
        scale = scaler.get_scale()
        raises = None
        steps = 0
        is_late = event in ("unscale_", "step") and scales.get(i) != scale
        if event in GRADIENTS:
            program.give(event, i, scale)
            scales[i] = scale
        else:
            raises = program.call(event, i)
            steps = program.steps
        gradient = program.gradient(i)
        expected.append(Due(raises, scaler.get_scale(), steps, gradient, is_late))
    return expected
