"""Policies of `ampsim.core.policies` in a scaler of torch: they run on the host.

On an accelerator each update waits for the flags, and for the largest gradient if the policy needs
it. Looking for that reads the gradients once more.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ampsim.core.machine import init, override, update
from ampsim.core.policies import Observation, Policy, flatten, unflatten
from ampsim.torch.gradients import unscale
from ampsim.torch.gradients.collect import Groups


class Observed(NamedTuple):
    """What one optimizer's gradients showed. Its tensors have shape ()."""

    amax: Tensor  # the largest unscaled magnitude
    at_top: Tensor | None  # count of elements at the largest number of their format
    elements: int


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
    def observe(self, groups: Groups, scale: Tensor) -> Observed | None:
        """Read what the policy needs of gradients that are still scaled; None if nothing."""
        if not (self.policy.needs and groups):
            return None
        home = scale.device
        peaks = [
            unscale.largest(part).to(home, torch.float64) for part in groups.values()
        ]
        grads = [grad for part in groups.values() for grad in part]
        at_top = None
        if "saturated" in self.policy.needs:
            top: float = self.policy.top  # type: ignore[attr-defined]
            counts = [(~(grad.abs() < top)).sum().to(home) for grad in grads]
            at_top = unscale.whole(torch.stack(counts).sum())
        amax = torch.stack(peaks).amax() / scale.double()
        return Observed(amax, at_top, sum(grad.numel() for grad in grads))

    def next_scale(
        self, found_inf: bool, observed: Sequence[Observed], scale: float
    ) -> float:
        """Return the scale after an iteration; `scale` is the one that it used.

        Args:
            found_inf: Whether any gradient was inf or NaN.
            observed: What the gradients of each optimizer showed.
            scale: Loss scale of the iteration. If other code has set it, the policy is told.
        """
        if scale != self._state.scale:
            self._state = override(self.policy, self._state, scale)
        seen = Observation(found_inf)
        if self.policy.needs:
            amax = max((float(one.amax) for one in observed), default=0.0)
            at_top = sum(
                float(one.at_top) for one in observed if one.at_top is not None
            )
            elements = sum(one.elements for one in observed)
            seen = Observation(found_inf, amax, at_top / max(1, elements))
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
