"""jmp, as its README has it: ``DynamicLossScale``, ``all_finite`` and ``select_tree``."""

from functools import partial
from typing import Any

import jax
import jmp
import numpy as np
import optax

from ampsim.testing import Loop
from experiments.frameworks import tiny

batches = tiny.arrays()
TX = optax.adam(0.1)


def apply(params: Any, data: Any) -> Any:
    """Return predictions, (rows, 1)."""
    return jax.nn.relu(data @ params["hidden"]) @ params["out"]


@jax.jit
def train_step(held: dict[str, Any], batch: tiny.Batch) -> dict[str, Any]:
    """Train on one batch."""
    params, scale = held["params"], held["scale"]
    grads = jax.grad(lambda p: scale.scale(tiny.loss_of(partial(apply, p), batch)))(
        params
    )
    grads = scale.unscale(grads)
    finite = jmp.all_finite(grads)
    updates, opt = TX.update(grads, held["opt"])
    params, opt = jmp.select_tree(
        finite, (optax.apply_updates(params, updates), opt), (params, held["opt"])
    )
    return {"params": params, "opt": opt, "scale": scale.adjust(finite)}


def make(scale: jmp.DynamicLossScale) -> Loop:
    """Make the loop."""
    draw = np.random.default_rng(0)
    params = {"hidden": draw.normal(size=(3, 4)), "out": draw.normal(size=(4, 1))}
    params = jax.tree.map(np.float32, params)
    return Loop(train_step, {"params": params, "opt": TX.init(params), "scale": scale})
