"""Train on 8 CPU devices as on one: `python -m tests.jax.sharded_loops [LIBRARY ...]`.

Prints one line per mesh, loop, and library: "same" if all loss scales equal those of one device and
the parameters agree. One batch has an inf, in the last device's rows only.
"""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

try:
    from jax.sharding import reshard
except ImportError:  # JAX 0.6
    from jax.experimental.shard import reshard
try:
    from jax import set_mesh
except ImportError:  # JAX 0.6
    from jax.sharding import use_mesh as set_mesh

from ampsim import Rule
from ampsim.jax import LossScale, dynamic_loss_scale, scale_loss, select_tree

SGD = optax.sgd(
    1e-2, momentum=0.9
)  # unlike Adam, shows gradients that are summed and not averaged
START, INTERVAL, OVERFLOW = 2.0**10, 4, 5
MESHES = ("Auto", "Explicit")
LOOPS = ("data parallel", "FSDP", "shard_map check_vma", "shard_map no check_vma")


def loss_of(params, x, y):
    w = params["w"]
    sharding = jax.typeof(w).sharding
    if (
        sharding.spec != P(None, None)
        and not sharding.mesh.empty
        and "d" in str(sharding.spec)
    ):
        w = reshard(w, NamedSharding(sharding.mesh, P(None, None)))  # gather, as FSDP
    half = x.astype(jnp.float16) @ w.astype(jnp.float16)
    return jnp.mean((half.astype(jnp.float32) + params["b"] - y) ** 2)


def own_copies(params, axis):
    """Let each device of a checked shard_map have a gradient of its own."""
    if axis is None or "d" not in jax.sharding.get_abstract_mesh().manual_axes:
        return params
    if hasattr(jax.lax, "pcast"):
        return jax.tree.map(lambda p: jax.lax.pcast(p, axis, to="varying"), params)
    return jax.tree.map(lambda p: jax.lax.pvary(p, axis), params)


def with_transformation(axis, checked):
    tx = dynamic_loss_scale(SGD, START, INTERVAL)

    def step(params, state, x, y):
        copies = own_copies(params, axis) if checked else params
        grads = jax.grad(lambda p: scale_loss(state, loss_of(p, x, y)))(copies)
        grads = grads if axis is None else jax.lax.pmean(grads, axis)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return tx.init, step, lambda state: state.loss_scale


def with_loss_scale(axis, checked):
    rule = Rule(START, growth_interval=INTERVAL)

    def step(params, state, x, y):
        differentiate = state["scale"].value_and_grad(loss_of, axis_name=axis)
        scale, finite, _, grads = differentiate(params, x, y)
        updates, after = SGD.update(grads, state["opt"], params)
        moved = (optax.apply_updates(params, updates), after)
        params, opt = select_tree(finite, moved, (params, state["opt"]))
        return params, {"opt": opt, "scale": scale}

    def init(params):
        return {"opt": SGD.init(params), "scale": LossScale.create(rule)}

    return init, step, lambda state: state["scale"].loss_scale


def with_flax(axis, checked):
    from flax.training.dynamic_scale import DynamicScale

    def step(params, state, x, y):
        differentiate = state["scale"].value_and_grad(loss_of, axis_name=axis)
        scale, finite, _, grads = differentiate(params, x, y)
        updates, after = SGD.update(grads, state["opt"], params)
        moved = (optax.apply_updates(params, updates), after)
        choose = lambda a, b: jnp.where(finite, a, b)  # noqa: E731
        params, opt = jax.tree.map(choose, moved, (params, state["opt"]))
        return params, {"opt": opt, "scale": scale}

    def init(params):
        count, scale = jnp.int32(0), jnp.float32(START)
        scaler = DynamicScale(
            growth_interval=INTERVAL - 1, fin_steps=count, scale=scale
        )
        return {"opt": SGD.init(params), "scale": scaler}

    return init, step, lambda state: state["scale"].scale


def with_apply_if_finite(axis, checked):
    tx = optax.apply_if_finite(SGD, 100)  # the loss scale is constant

    def step(params, state, x, y):
        copies = own_copies(params, axis) if checked else params
        grads = jax.grad(lambda p: loss_of(p, x, y))(copies)
        grads = grads if axis is None else jax.lax.pmean(grads, axis)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return tx.init, step, lambda state: state.total_notfinite


LIBRARIES = {
    "dynamic_loss_scale": with_transformation,
    "LossScale": with_loss_scale,
    "flax.DynamicScale": with_flax,
    "optax.apply_if_finite": with_apply_if_finite,
}


def batches():
    x = jax.random.normal(jax.random.key(0), (12, 64, 16))
    y = x @ jax.random.normal(jax.random.key(1), (16, 8))
    return list(
        zip(np.asarray(x.at[OVERFLOW, 63].set(jnp.inf)), np.asarray(y), strict=True)
    )


def train(init, step, read, place, put):
    """Return the loss scale before each step, and the last parameters."""
    params = place({"w": jnp.zeros((16, 8)), "b": jnp.zeros(8)})
    state, scales, run = init(params), [], jax.jit(step)
    for batch in batches():
        scales.append(float(read(state)))
        params, state = run(params, state, *map(put, batch))
    return scales, np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def trained(library, mesh, loop):
    manual = loop.startswith("shard_map")
    checked = loop == "shard_map check_vma"
    init, step, read = LIBRARIES[library]("d" if manual else None, checked)
    rows = NamedSharding(mesh, P("d", None))
    matrix = P("d", None) if loop == "FSDP" else P(None, None)

    def place(params):
        specs = {"w": matrix, "b": P(None)}
        return {
            k: jax.device_put(v, NamedSharding(mesh, specs[k]))
            for k, v in params.items()
        }

    if manual:
        specs = {"in_specs": (P(), P(), P("d"), P("d")), "out_specs": (P(), P())}
        step = jax.shard_map(step, mesh=mesh, check_vma=checked, **specs)
    return train(init, step, read, place, lambda batch: jax.device_put(batch, rows))


def main(libraries):
    for library in libraries:
        alone = train(
            *LIBRARIES[library](None, checked=False), lambda p: p, jnp.asarray
        )
        for kind in MESHES:
            mesh = jax.make_mesh((8,), ("d",), axis_types=(getattr(AxisType, kind),))
            for loop in LOOPS:
                try:
                    with set_mesh(
                        mesh
                    ):  # else arrays that a step makes have no sharding
                        scales, params = trained(library, mesh, loop)
                    close = np.allclose(params, alone[1], rtol=1e-2, atol=1e-4)
                    result = "same" if scales == alone[0] and close else "differs"
                except Exception as error:
                    result = f"{type(error).__name__}: {error}".partition("\n")[0]
                print(f"{library}, {kind}, {loop}: {result}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or LIBRARIES)
