"""flax: linen with ``DynamicScale``, as the mixed-precision step of its ImageNet example; nnx with
a `LossScale`.
"""

from functools import partial
from typing import Any

import flax
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx
from flax.training import train_state
from flax.training.dynamic_scale import DynamicScale
from jax import Array

from ampsim.jax import LossScale
from ampsim.testing import Loop
from experiments.frameworks import tiny

batches = tiny.arrays()


class Net(nn.Module):
    """Two layers with batch normalization between."""

    @nn.compact
    def __call__(self, data: Array) -> Any:
        """Return predictions, (rows, 1)."""
        hidden = nn.BatchNorm(use_running_average=False)(nn.Dense(4)(data))
        return nn.Dense(1)(nn.tanh(hidden))


class TrainState(train_state.TrainState):
    """The example's state."""

    batch_stats: Any
    dynamic_scale: DynamicScale


NET, TX = Net(), optax.sgd(0.1, momentum=0.9, nesterov=True)


@jax.jit
def train_step(state: Any, batch: tiny.Batch) -> tuple[Any, dict[str, Array]]:
    """Train on one batch, as the example does."""

    def loss_of(params: Any) -> tuple[Array, Any]:
        variables = {"params": params, "batch_stats": state.batch_stats}
        predicted, changed = state.apply_fn(
            variables, batch[0], mutable=["batch_stats"]
        )
        return ((predicted - batch[1]) ** 2).mean(), changed

    dynamic_scale, is_fin, (loss, changed), grads = state.dynamic_scale.value_and_grad(
        loss_of, has_aux=True
    )(state.params)
    new = state.apply_gradients(grads=grads, batch_stats=changed["batch_stats"])
    choose = partial(jax.tree.map, partial(jnp.where, is_fin))
    new = new.replace(
        opt_state=choose(new.opt_state, state.opt_state),
        params=choose(new.params, state.params),
        dynamic_scale=dynamic_scale,
    )
    return new, {"loss": loss}


def make(scale: DynamicScale) -> Loop:
    """Make the loop of the example; its checkpoint is flax's bytes."""
    variables = NET.init(jax.random.key(0), jnp.ones((1, 3)))
    fresh = TrainState.create(
        apply_fn=NET.apply,
        params=variables["params"],
        tx=TX,
        batch_stats=variables["batch_stats"],
        dynamic_scale=scale,
    )

    def step(
        held: dict[str, Any], batch: tiny.Batch
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        state, logs = train_step(held["state"], batch)
        return {"state": state}, logs

    return Loop(
        step,
        {"state": fresh},
        save=lambda held: flax.serialization.to_bytes(held["state"]),
        load=lambda data: {"state": flax.serialization.from_bytes(fresh, data)},
    )


def _apply(model: nnx.Module, optimizer: nnx.Optimizer[Any], grads: Any) -> None:
    optimizer.update(model, grads)


@nnx.jit
def nnx_step(
    model: Any, optimizer: nnx.Optimizer[Any], scale: LossScale, batch: tiny.Batch
) -> tuple[LossScale, Array]:
    """Train on one batch; skip by not calling the optimizer."""
    differentiate = scale.value_and_grad(
        lambda net: tiny.loss_of(net, batch), grad=nnx.value_and_grad
    )
    scale, finite, loss, grads = differentiate(model)
    nnx.cond(finite, _apply, lambda *unchanged: None, model, optimizer, grads)
    return scale, loss


def make_nnx(scale: LossScale) -> Loop:
    """Make a loop of modules that are changed in place."""
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)

    def step(
        held: dict[str, Any], batch: tiny.Batch
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        scale, loss = nnx_step(held["model"], held["optimizer"], held["scale"], batch)
        return {**held, "scale": scale}, {"loss": loss}

    return Loop(step, {"model": model, "optimizer": optimizer, "scale": scale})
