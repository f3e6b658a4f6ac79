"""How a scaler keeps its state: by a rule, by a rule at fixed addresses for CUDA graphs, or by a policy.

A kind is what differs between them and nothing else. The scaler holds one, and does not ask which.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.core.machine import State, init
from ampsim.core.policies.base import Policy
from ampsim.torch import config
from ampsim.torch.state import policy as by_policy
from ampsim.torch.state import saving
from ampsim.torch.state.policy import Observed, PolicyVersion
from ampsim.torch.state.versions import StaticVersion, Version, first_version, static_version


@dataclass(frozen=True)
class ByRule:
    """Versions are immutable; the next one is the rule's."""

    exact_torch: bool  # exactly as torch
    in_place: ClassVar[bool] = False

    def versions(self, states: tuple[Any, ...], rule: Any, device: torch.device) -> tuple[Version, ...]:
        """Of the states that the next ticket and those after it carry."""
        return tuple(first_version(state, device, rule, exact_torch=self.exact_torch) for state in states)

    def restored(self, newest: Version, states: tuple[Any, ...], rule: Any) -> tuple[Version, ...]:
        """`versions` in place of those that a scaler has."""
        return self.versions(states, rule, newest.device)

    def observe(self, rule: Any, optimizer: Optimizer, version: Version) -> Observed | None:
        """What an update needs to know of gradients beyond found_inf."""
        return None

    def next(self, version: Any, rule: Any, flags: list[Tensor], observed: list[Observed], is_async: bool) -> Version:
        """The version after an update; flags of shape (), float32."""
        return version.next(rule, flags)  # type: ignore[no-any-return]

    def states(self, versions: Sequence[Any]) -> tuple[Any, ...]:
        """What `versions` are made of again. Waits for the device."""
        return tuple(version.read() for version in versions)

    def to_dict(self, rule: Any, states: tuple[Any, ...], depth: int) -> dict[str, Any]:
        return saving.to_dict(rule, states, depth)

    def from_dict(self, saved: dict[str, Any], rule: Any) -> tuple[Any, tuple[Any, ...]]:
        """Rule and states; raises before anything is changed."""
        return saving.from_dict(saved, rule, exact_torch=self.exact_torch)


@dataclass(frozen=True)
class Captured(ByRule):
    """One version for good, written in place."""

    in_place: ClassVar[bool] = True

    def versions(self, states: tuple[Any, ...], rule: Any, device: torch.device) -> tuple[Version, ...]:
        return tuple(static_version(state, device) for state in states)

    def restored(self, newest: Version, states: tuple[Any, ...], rule: Any) -> tuple[Version, ...]:
        assert isinstance(newest, StaticVersion)  # noqa: S101 - it has no other
        return (newest.write(static_version(states[-1], newest.device)),)


@dataclass(frozen=True)
class ByPolicy(ByRule):
    """On the host; one state holds the scales of all depths."""

    def versions(self, states: tuple[Any, ...], rule: Any, device: torch.device) -> tuple[Version, ...]:
        return by_policy.versions(states[-1])

    def observe(self, rule: Any, optimizer: Optimizer, version: Version) -> Observed | None:
        return by_policy.observe(rule, optimizer, version)

    def next(self, version: Any, rule: Any, flags: list[Tensor], observed: list[Observed], is_async: bool) -> Version:
        assert isinstance(version, PolicyVersion)  # noqa: S101 - it has no other
        return version.after(rule, flags, observed, is_async=is_async)

    def states(self, versions: Sequence[Any]) -> tuple[Any, ...]:
        return (versions[-1].carried,)

    def to_dict(self, rule: Any, states: tuple[Any, ...], depth: int) -> dict[str, Any]:
        return by_policy.to_dict(rule, states[-1])

    def from_dict(self, saved: dict[str, Any], rule: Any) -> tuple[Any, tuple[Any, ...]]:
        return rule, (by_policy.from_dict(saved, rule),)


def make(
    constants: tuple[Any, ...],
    depth: int,
    *,
    exact_torch: bool,
    capturable: bool,
    policy: Policy | None,
) -> tuple[ByRule, Any, tuple[Any, ...]]:
    """The kind, the checked rule, and the first state, from what a scaler is made with.

    `constants`: init_scale, growth_factor, backoff_factor, growth_interval, min_scale, max_scale.
    """
    if policy is not None:
        by_policy.check_constants((*constants, capturable))
        checked = by_policy.check_policy(policy, depth, exact_torch=exact_torch)
        return ByPolicy(exact_torch), checked, (init(checked),)
    kind = (Captured if capturable else ByRule)(exact_torch)
    # The scale is rounded to float32 when `scale` or `begin` makes the first version, as in torch.
    return kind, config.make_rule(*constants, exact_torch=exact_torch), (State(constants[0]),)
