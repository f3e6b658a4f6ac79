"""A loss-scale policy of `ampsim.core.policies` as a pytree, for jit, vmap, scan and donation.

The same lines run here and in core. States are core's to the last bit, except `LogMax`'s: its logarithms and powers
are XLA's and its variance is a small difference of them, so its scale agrees to 0.1 bit, not to the last.
"""

from dataclasses import dataclass, field
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ampsim.core.policies import Observation, Policy, PolicyState
from ampsim.jax import checkpoint


@checkpoint.saved
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PolicyScale:
    """A policy and its state. Frozen; the leaves are the state's float32 and int32 scalars, the policy is static.

    Attributes:
        policy: its numbers; static, no leaf.
        state: scalars, float32 and int32.
    """

    policy: Policy = field(metadata={"static": True})
    state: PolicyState

    @classmethod
    def create(cls, policy: Policy) -> Self:
        """Return the state before the first update."""
        return cls(policy, policy.init_in(jnp))

    @property
    def loss_scale(self) -> Array:
        """Shape (), float32: of the step that the next update reports on, as in replay."""
        return jnp.asarray(self.state.scale)

    @property
    def newest(self) -> Array:
        """Shape (), float32: of the step begun next in a pipeline that is ``policy.delay`` steps ahead."""
        return jnp.asarray(self.state.newest)

    def update(
        self,
        found_inf: ArrayLike,
        amax: ArrayLike | None = None,
        saturated: ArrayLike | None = None,
    ) -> "PolicyScale":
        """Return the state after one step.

        Args:
            found_inf: shape (); whether the gradients overflowed, taken by its truth, so that NaN is True.
            amax: shape (); largest magnitude of the unscaled gradients. Needed if ``policy.needs`` names it.
            saturated: shape (); share of the elements at their format's maximum. Likewise.

        Raises:
            ValueError: what the policy needs is missing.
        """
        sizes = (
            None if value is None else jnp.asarray(value, jnp.float32)
            for value in (amax, saturated)
        )
        arrays: list[Any] = [
            jnp.asarray(found_inf) != 0,
            *sizes,
        ]  # an Observation is typed for Python's numbers
        return PolicyScale(
            self.policy, self.policy.update_in(jnp, self.state, Observation(*arrays))
        )

    def override(self, new_scale: ArrayLike) -> "PolicyScale":
        """Return it with the scale set by hand; with a delay it waits its turn. Bounds are not applied."""
        return PolicyScale(
            self.policy, self.policy.override_in(jnp, self.state, jnp.asarray(new_scale))
        )
