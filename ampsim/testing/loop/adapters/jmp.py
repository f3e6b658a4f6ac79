"""jmp and haiku, as jmp's README has them: ``DynamicLossScale``, ``all_finite`` and ``select_tree``."""

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import jmp
import optax

from ampsim.testing.loop.adapters import numpy_tiny as tiny
from ampsim.testing.loop.loop import Loop

batches = tiny.batches()
NET = hk.without_apply_rng(hk.transform(lambda data: hk.nets.MLP([4, 1])(data)))
TX = optax.adam(0.1)


@jax.jit
def train_step(held: dict[str, Any], batch: tiny.Batch) -> dict[str, Any]:
    """Train on one batch."""
    params, scale = held["params"], held["scale"]
    grads = jax.grad(lambda p: scale.scale(tiny.square_error(NET.apply(p, batch[0]), batch[1])))(params)
    grads = scale.unscale(grads)
    finite = jmp.all_finite(grads)
    updates, opt = TX.update(grads, held["opt"])
    params, opt = jmp.select_tree(finite, (optax.apply_updates(params, updates), opt), (params, held["opt"]))
    return {"params": params, "opt": opt, "scale": scale.adjust(finite)}


def make(scale: jmp.DynamicLossScale) -> Loop:
    """Make the loop."""
    params = NET.init(jax.random.key(0), jnp.ones((1, 3)))
    return Loop(train_step, {"params": params, "opt": TX.init(params), "scale": scale})
