"""Policies of `ampsim.core.policies` as a scaler's state: on the host, with what they must know of the gradients.

On other devices each update waits for the flags, and for the largest gradient where the policy needs it. Looking for
that reads the gradients once more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from ampsim.core.machine import State, override, update
from ampsim.core.policies import Observation, Policy, PolicyState
from ampsim.torch.gradients import unscale
from ampsim.torch.gradients.collect import Groups
from ampsim.torch.state.host import HostScale, any_found
from ampsim.torch.state.version import DeviceObservation, Outcome


@dataclass(frozen=True, eq=False, kw_only=True)
class PolicyVersion(HostScale[Policy, PolicyState]):
    """The version after j updates in a pipeline of depth k: the scale of iteration j + k, and the policy's state."""

    observes: ClassVar[bool] = True
    carried: PolicyState

    @classmethod
    def start(
        cls, states: tuple[PolicyState, ...], rule: Policy, device: torch.device
    ) -> tuple[Self, ...]:
        """Make one version per scale in the queue; just one if all iterations use the same."""
        carried = states[-1]
        queue = (carried.scale, *carried.pending)
        older = queue[:-1] if len(set(queue)) > 1 else ()
        return (*(cls(state=State(scale), carried=carried) for scale in older), cls._of(carried))

    @classmethod
    def _of(cls, carried: PolicyState) -> Self:
        return cls(state=State(carried.newest, carried.growth_tracker), carried=carried)

    def saved(self) -> PolicyState:
        """Return the policy's state, which holds the scales of all depths."""
        return self.carried

    def keep(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(torch.cuda.current_stream(tensor.device))

    @torch.no_grad()
    def observe(self, rule: Policy, groups: Groups) -> DeviceObservation | None:
        """Read of gradients that are still scaled what the policy needs; one more read, or none."""
        if not (rule.needs and groups):
            return None
        home = next(iter(groups))[0]
        grads = [grad for part in groups.values() for grad in part]
        amax = torch.stack(
            [unscale.largest(part).to(home, torch.float64) for part in groups.values()]
        ).amax()
        at_top = None
        if "saturated" in rule.needs:
            counts = [(~(grad.abs() < rule.top)).sum().to(home) for grad in grads]  # type: ignore[attr-defined]
            at_top = unscale.whole(torch.stack(counts).sum())
        return DeviceObservation(
            amax / self.scale_on(home).double(), at_top, sum(grad.numel() for grad in grads)
        )

    def next(self, rule: Policy, outcome: Outcome) -> Self:
        seen = combined(rule, any_found(outcome), outcome.observed)
        return self._of(update(rule, self.carried, seen, synchronous=not outcome.is_async))

    def override(self, rule: Policy, new_scale: float | Tensor) -> Self:
        return self._of(override(rule, self.carried, float(new_scale)))


def combined(policy: Policy, found: bool, observed: Sequence[DeviceObservation]) -> Observation:
    """Combine what all optimizers of an iteration showed."""
    if not policy.needs:
        return Observation(found)
    amax = max((float(one.amax.item()) for one in observed), default=0.0)
    elements = sum(one.elements for one in observed)
    top = sum(float(one.at_top.item()) for one in observed if one.at_top is not None)
    return Observation(found, amax, top / max(1, elements))
