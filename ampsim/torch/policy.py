"""Policies of `ampsim.core.policies` in a scaler of torch: they run on the host.

On an accelerator each update waits for the flags, and for the largest gradient if the policy needs
it. Looking for that reads the gradients once more.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ampsim.core.machine import init, override, update
from ampsim.core.policies import Observation, Policy, flatten, unflatten
from ampsim.torch.gradients import unscale
from ampsim.torch.gradients.collect import Groups


class PolicyRun:
    """A policy and its state."""

    def __init__(self, policy: Policy) -> None:
        """Start a policy, which must have ``delay=0``.

        Raises:
            TypeError: If `policy` is no `Policy`.
            ValueError: If `policy` has another delay.
        """
        if not isinstance(policy, Policy):
            raise TypeError(
                f"policy={policy!r}: expected a policy of ampsim.core.policies; "
                "for a Rule pass its constants"
            )
        if policy.delay:
            raise ValueError(
                f"policy with delay={policy.delay}: expected delay=0 in a synchronous scaler; "
                "pass dataclasses.replace(policy, delay=0)"
            )
        self.policy, self._state = policy, init(policy)

    @torch.no_grad()
    def largest(self, groups: Groups, scale: Tensor) -> Tensor | None:
        """Return the largest unscaled magnitude of gradients that are still scaled, of shape ();
        None if the policy does not need it.
        """
        if not (self.policy.needs and groups):
            return None
        home = scale.device
        peaks = [
            unscale.largest(part).to(home, torch.float64) for part in groups.values()
        ]
        return torch.stack(peaks).amax() / scale.double()

    def next_scale(
        self, found_inf: bool, largest: Sequence[Tensor], scale: float
    ) -> float:
        """Return the scale after an iteration; `scale` is the one that it used.

        Args:
            found_inf: Whether any gradient was inf or NaN.
            largest: Largest unscaled magnitude of each optimizer's gradients.
            scale: Loss scale of the iteration. If other code has set it, the policy is told.
        """
        if scale != self._state.scale:
            self._state = override(self.policy, self._state, scale)
        seen = Observation(found_inf)
        if self.policy.needs:
            seen = Observation(found_inf, max(map(float, largest), default=0.0))
        self._state = update(self.policy, self._state, seen)
        return self._state.scale

    def state_dict(self) -> dict[str, Any]:
        """Return the policy's name and its state as a list of numbers."""
        return {"policy": type(self.policy).__name__, "state": flatten(self._state)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Load what `state_dict` returned; raise ValueError for the state of another policy."""
        name = type(self.policy).__name__
        if saved.get("policy") != name:
            raise ValueError(
                f"policy={saved.get('policy')!r} in the state dict: expected {name!r}; "
                "load it into a scaler with the policy it was saved from"
            )
        self._state = unflatten(self.policy, saved.get("state"))
