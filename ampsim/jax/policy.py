"""A loss-scale policy of `ampsim.core.policies` as a pytree, for jit, vmap, scan and donation.

The code is shared with core, and states equal core's to the last bit. `LogMax` is the exception: it
uses logarithms and powers of XLA, so its scale agrees within 0.1 bit.
"""

from dataclasses import dataclass, field
from typing import Any, Self

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ampsim.core.policies import Observation, Policy, PolicyState
from ampsim.jax.checkpoint import pytree


@pytree(marked="state")
@dataclass(frozen=True)
class PolicyScale:
    """A policy and its state, as a pytree.

    The leaves are the state's float32 and int32 scalars; the policy is static.

    Attributes:
        policy: The policy; static, no leaf.
        state: State of the policy; scalars of dtype float32 and int32.
    """

    policy: Policy = field(metadata={"static": True})
    state: PolicyState

    @classmethod
    def create(cls, policy: Policy) -> Self:
        """Return the policy scale before the first update.

        Args:
            policy: A policy of `ampsim.core.policies`, or your own.

        Returns:
            PolicyScale: The policy with its first state.
        """
        return cls(policy, policy.init_in(jnp))

    @property
    def loss_scale(self) -> Array:
        """Loss scale of the step that the next update reports, as in replay; shape (), float32."""
        return jnp.asarray(self.state.scale)

    @property
    def newest(self) -> Array:
        """Loss scale of the step that begins next, ``policy.delay`` steps ahead; shape (), float32."""
        return jnp.asarray(self.state.newest)

    def update(
        self,
        found_inf: ArrayLike,
        amax: ArrayLike | None = None,
    ) -> "PolicyScale":
        """Return the policy scale after one step.

        Args:
            found_inf: Whether any gradient was not finite, of shape (); NaN is an overflow.
            amax: Largest magnitude of the unscaled gradients, of shape (). Required if in
                ``policy.needs``.

        Returns:
            PolicyScale: The updated policy scale.

        Raises:
            ValueError: If an input in ``policy.needs`` is missing.
        """
        size = None if amax is None else jnp.asarray(amax, jnp.float32)
        # an Observation is typed for Python's numbers
        arrays: list[Any] = [jnp.asarray(found_inf) != 0, size]
        return PolicyScale(
            self.policy, self.policy.update_in(jnp, self.state, Observation(*arrays))
        )

    def override(self, new_scale: ArrayLike) -> "PolicyScale":
        """Set the scale; bounds are not applied.

        Args:
            new_scale: Scale of shape (). With a delay, it waits for ``delay`` updates.

        Returns:
            PolicyScale: The updated policy scale.
        """
        return PolicyScale(
            self.policy,
            self.policy.override_in(jnp, self.state, jnp.asarray(new_scale)),
        )
