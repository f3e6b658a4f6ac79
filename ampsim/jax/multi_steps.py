"""Gradient accumulation around `dynamic_loss_scale`."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from ampsim.jax.trees import Tree


class MultiSteps(optax.MultiSteps):  # type: ignore[misc]
    """``optax.MultiSteps`` whose windows start from zero also after an overflow.

    At the end of a window, optax 0.2.8 multiplies the accumulated gradients by 0, which leaves NaN
    where they are inf. All later windows are then NaN too, and a loss scale backs off at each.

    In ``MultiSteps(dynamic_loss_scale(inner), k)``, the loss scale is constant within a window, and
    one overflow skips the window, as in torch. In the reverse order,
    ``dynamic_loss_scale(optax.MultiSteps(inner, k))``, an overflow drops its micro-batch alone, the
    loss scale changes at once, and ``growth_interval`` counts micro-batches.
    """

    def update(
        self,
        updates: Tree,
        state: optax.MultiStepsState,
        params: Tree = None,
        **extra_args: Any,
    ) -> tuple[Tree, optax.MultiStepsState]:
        """Accumulate gradients; at the end of a window, return updates that are not zero.

        Args:
            updates: Gradients of one micro-batch.
            state: State of the accumulation.
            params: Parameters.
            **extra_args: Arguments of the inner optimizer.

        Returns:
            The updates, and the state after the micro-batch.
        """
        updates, state = super().update(updates, state, params, **extra_args)
        starts = state.mini_step == 0
        sums = jax.tree.map(lambda x: jnp.where(starts, 0, x), state.acc_grads)
        return updates, state._replace(acc_grads=sums)
