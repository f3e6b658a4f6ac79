"""equinox and optax with a `LossScale`: accumulation, clipping, a schedule, and equinox's own
checkpoints.
"""

import io
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from ampsim.jax import LossScale, all_finite, select_tree
from ampsim.testing import Loop
from experiments.frameworks import tiny

batches = tiny.arrays()
TX = optax.chain(
    optax.clip_by_global_norm(0.1), optax.adam(optax.exponential_decay(0.1, 1, 0.9))
)


@eqx.filter_jit
def train_step(
    held: dict[str, Any], batch: Any
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Train on one batch: the mean of its micro-batches' gradients, checked once."""
    model, scale, parts = held["model"], held["scale"], tiny.parts(batch)
    gradient = eqx.filter_grad(
        lambda net, part: scale.scale(tiny.loss_of(jax.vmap(net), part))
    )
    each = [gradient(model, part) for part in parts]
    grads = scale.unscale(
        jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *each)
    )
    updates, opt = TX.update(grads, held["opt"])
    finite = all_finite(grads)
    model, opt = select_tree(
        finite, (eqx.apply_updates(model, updates), opt), (model, held["opt"])
    )
    after = {"model": model, "opt": opt, "scale": scale.update(~finite)}
    return after, {"norm": optax.tree.norm(jax.tree.map(jnp.asarray, grads))}


def make(scale: LossScale) -> Loop:
    """Make a loop of a module that holds functions beside its arrays."""
    model = eqx.nn.MLP(3, 1, 4, 1, key=jax.random.key(0))
    fresh = {
        "model": model,
        "opt": TX.init(eqx.filter(model, eqx.is_inexact_array)),
        "scale": scale,
    }

    def save(held: dict[str, Any]) -> bytes:
        file = io.BytesIO()
        eqx.tree_serialise_leaves(file, held)
        return file.getvalue()

    def load(data: bytes) -> dict[str, Any]:
        return eqx.tree_deserialise_leaves(io.BytesIO(data), fresh)  # type: ignore[no-any-return]

    return Loop(train_step, fresh, split=tiny.cut, save=save, load=load)
