"""Policies of `ampsim.core.policies` in a scaler: their versions, what they see of the gradients, their dict.

A policy is computed on the host, so on other devices each update waits for the flags, and for the largest
gradient where the policy needs it. Looking for that reads the gradients once more.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.core.machine import State, override, update
from ampsim.core.policies.base import Observation, Policy, PolicyState, flatten, unflatten
from ampsim.torch.gradients import unscale
from ampsim.torch.state.versions import HostVersion


@dataclass(frozen=True, eq=False)
class PolicyVersion(HostVersion):
    """What a pipeline of depth k makes of j updates: the scale of iteration j + k, and the policy's state."""

    carried: PolicyState | None = None  # None of a version that is no longer updated

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Keep the memory of CUDA tensors from other streams until this one is done with them."""
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(torch.cuda.current_stream(tensor.device))

    def made(self, carried: PolicyState) -> "PolicyVersion":
        """The version of a state."""
        return PolicyVersion(State(carried.newest, carried.growth_tracker), carried=carried)

    def after(
        self, rule: Any, found_inf: list[Tensor], observed: "Iterable[Observed]", *, is_async: bool
    ) -> "PolicyVersion":
        """The version after an update; waits for the flags and for what was observed."""
        found = sum(flag.item() for flag in found_inf) != 0  # NaN != 0, as in torch
        seen: Any = combine(rule, found, list(observed))
        return self.made(update(rule, self.carried, seen, synchronous=not is_async))

    def override(self, rule: Any, new_scale: float | Tensor) -> "PolicyVersion":
        assert self.carried is not None  # noqa: S101 - only the newest version is updated
        return self.made(override(rule, self.carried, float(new_scale)))


@dataclass(frozen=True)
class Observed:
    """Of one optimizer's gradients, on their device; see `Observation`."""

    amax: Tensor  # (), largest magnitude, unscaled
    at_top: Tensor | None  # (), elements at the format's largest number or beyond
    elements: int


def check_policy(policy: object, depth: int, *, exact_torch: bool) -> Policy:
    """Return a policy for this depth; refuse what is none and what has another delay."""
    if not isinstance(policy, Policy):
        raise TypeError(f"policy={policy!r}: expected a policy of ampsim.core.policies; for a Rule pass its constants")
    if exact_torch:
        raise ValueError(f"policy={policy!r} with exact_torch=True: expected one of the two; torch has no policies")
    if policy.delay != depth:
        raise ValueError(
            f"delay={policy.delay} with depth={depth}: expected them to be equal; "
            f"pass dataclasses.replace(policy, delay={depth})"
        )
    return policy


def check_constants(given: tuple[Any, ...]) -> None:
    """Refuse constants beside a policy: they would be ignored."""
    if given != (2.0**16, 2.0, 0.5, 2000, None, None, False):
        raise ValueError(
            f"policy= with {given}: expected the defaults of init_scale, growth_factor, backoff_factor, "
            "growth_interval, min_scale, max_scale and capturable; give the numbers to the policy"
        )


@torch.no_grad()
def observe(rule: Any, optimizer: Optimizer, version: Any) -> Observed | None:
    """What the rule needs to know of gradients that are still scaled; one more read, or none."""
    needs = rule.needs if isinstance(rule, Policy) else ()
    groups = unscale.gradients(optimizer, allow_fp16=True) if needs else {}
    if not groups:
        return None
    home = next(iter(groups))[0]
    grads = [grad for part in groups.values() for grad in part]
    amax = torch.stack([unscale.largest(part).to(home, torch.float64) for part in groups.values()]).amax()
    at_top = None
    if "saturated" in needs:
        at_top = torch.stack([(~(grad.abs() < rule.top)).sum().to(home) for grad in grads]).sum()
    return Observed(amax / version.scale_on(home).double(), at_top, sum(grad.numel() for grad in grads))


def combine(rule: Policy, found: bool, observed: list[Observed]) -> Observation:
    """What all optimizers of an iteration showed."""
    if not rule.needs:
        return Observation(found)
    amax = max((float(one.amax.item()) for one in observed), default=0.0)
    elements = sum(one.elements for one in observed)
    top = sum(float(one.at_top.item()) for one in observed if one.at_top is not None)
    return Observation(found, amax, top / max(1, elements))


def versions(carried: PolicyState) -> tuple[PolicyVersion, ...]:
    """One a scale of the queue; all iterations use the same where there is only one scale in it."""
    queue = (carried.scale, *carried.pending)
    older = queue[:-1] if len(set(queue)) > 1 else ()
    newest = PolicyVersion(State(0.0)).made(carried)
    return (*(PolicyVersion(State(scale)) for scale in older), newest)


def to_dict(rule: Policy, carried: PolicyState) -> dict[str, Any]:
    """The policy's name and numbers, and every number of its state."""
    return {"policy": type(rule).__name__, "constants": dataclasses.asdict(rule), "state": flatten(carried)}


def from_dict(saved: dict[str, Any], rule: Policy) -> PolicyState:
    """The state of `to_dict`; refuses one of another kind of policy."""
    name = type(rule).__name__
    if saved.get("policy") != name:
        raise ValueError(
            f"policy={saved.get('policy')!r} in the state dict: expected {name!r}; "
            "load it into a scaler made with the policy it was saved from"
        )
    return unflatten(rule, saved["state"])
