"""Loops of JAX that are right, and loops that are wrong as in a public thread, with the check that
must catch each.

What a step is made of is compiled once, however often a loop is made: it takes all that it reads,
the scaler included.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampsim.jax import LossScale, all_finite, select_tree
from ampsim.testing import Loop

SCALE, SKIP, RESUME = (
    "gradients_do_not_depend_on_loss_scale",
    "skipped_step_changes_nothing",
    "resume_is_exact",
)
SPLIT, LEARNS = "micro_batches_equal_one_batch", "step_changes_parameters"
TX = optax.sgd(optax.exponential_decay(0.1, 1, 0.9), momentum=0.9)


def batches(count=4, rows=8):
    draw = np.random.default_rng(7)
    return [
        tuple(draw.normal(size=(rows, width)).astype(np.float32) for width in (3, 1))
        for _ in range(count)
    ]


def cut(batch, count):
    """A batch as `count` micro-batches, stacked; `parts` takes either."""
    return tuple(array.reshape(count, -1, array.shape[-1]) for array in batch)


def parts(batch):
    return batch if batch[0].ndim == 3 else cut(batch, 1)


def loss_of(params, batch):
    data, target = batch
    return jnp.mean((jnp.tanh(data @ params["w"]) * params["v"] - target) ** 2)


def start(scaler, **more):
    params = {"w": jnp.array([[0.5], [-0.25], [0.75]]), "v": jnp.ones(1)}
    return {"params": params, "opt": TX.init(params), "scale": scaler, **more}


@jax.jit
def differentiate(scale, params, batch):
    return jax.grad(lambda params: scale.scale(loss_of(params, batch)))(params)


@jax.jit
def unscale(scale, grads):
    return scale.unscale(grads)


def gradients(state, batch):
    """Gradients that are still scaled."""
    return differentiate(state["scale"], state["params"], batch)


def unscaled(state, batch):
    return unscale(state["scale"], gradients(state, batch))


@jax.jit
def applied(params, opt, grads):
    updates, opt = TX.update(grads, opt)
    return {"params": optax.apply_updates(params, updates), "opt": opt}


def stepped(state, grads):
    """Parameters and optimizer after a step, whatever the gradients are."""
    return applied(state["params"], state["opt"], grads)


@jax.jit
def chosen(state, grads, finite):
    kept = {key: state[key] for key in ("params", "opt")}
    return {
        **select_tree(finite, stepped(state, grads), kept),
        "scale": state["scale"].update(~finite),
    }


finite = jax.jit(all_finite)
BASE = (
    "params",
    "opt",
    "scale",
)  # what every loop carries, so that `chosen` is compiled once


def update(state, grads, is_finite=None, **always):
    """The state after a step that is skipped if `grads` are not finite; `always` goes on in any
    case.
    """
    base = {key: state[key] for key in BASE}
    return {
        **state,
        **chosen(base, grads, finite(grads) if is_finite is None else is_finite),
        **always,
    }


# -----------------------------------------------------------------------------------------------------
# what is right

RIGHT = {}


def right(make):
    RIGHT[make.__name__] = make
    return make


@jax.jit
def step_averaging(state, batch):
    scale, finite, loss, grads = state["scale"].value_and_grad(loss_of)(
        state["params"], batch
    )
    norm = optax.tree.norm(grads)
    grads = jax.tree.map(lambda g: g / jnp.maximum(norm, 0.1), grads)
    ema = optax.incremental_update(stepped(state, grads)["params"], state["ema"], 0.1)
    after = {**stepped(state, grads), "ema": ema, "steps": state["steps"] + 1}
    kept = {key: state[key] for key in after}
    after = {
        **select_tree(finite, after, kept),
        "scale": scale,
        "key": state["key"],
        "data": state["data"] + 1,
    }
    return after, {"loss": loss, "norm": norm}


@right
def averaging(scaler: LossScale):
    """Clips, logs, averages, and counts steps and batches."""
    state = start(scaler, steps=jnp.int32(0), data=jnp.int32(0), key=jax.random.key(0))
    return Loop(step_averaging, {**state, "ema": state["params"]})


@jax.jit
def step_curvature(state, batch):
    ones = jax.tree.map(jnp.ones_like, state["params"])
    curvature = jax.grad(
        lambda params: optax.tree.vdot(jax.grad(loss_of)(params, batch), ones)
    )(state["params"])
    divided = jax.tree.map(
        lambda g, h: g / (1 + jnp.abs(h)), unscaled(state, batch), curvature
    )
    return update(state, divided)


@right
def curving(scaler: LossScale):
    """Divides by the curvature of the loss, which nothing scales."""
    return Loop(step_curvature, start(scaler))


@jax.jit
def step_statistics(state, batch):
    mean = 0.9 * state["batch_stats"]["mean"] + 0.1 * batch[0].mean(0)
    return update(state, unscaled(state, batch), batch_stats={"mean": mean})


@right
def statistics(scaler: LossScale):
    """Keeps a forward pass's statistics in a skipped step, as torch's buffers are kept."""
    return Loop(
        step_statistics, {**start(scaler), "batch_stats": {"mean": jnp.zeros(3)}}
    )


# ----------------------------------------------------------------------- one leaf that is forgotten


LEAVES = ("params.w", "opt.0.trace.v", "opt.1.count")
CONSTANT = optax.sgd(
    optax.constant_schedule(0.1), momentum=0.9
)  # of whose count nothing follows


@jax.jit  # once for all leaves
def step_selecting(is_forgotten, state, batch):
    grads = unscaled(state, batch)
    is_finite = finite(grads)
    updates, opt = CONSTANT.update(grads, state["opt"])
    new = {"params": optax.apply_updates(state["params"], updates), "opt": opt}

    def select(path, new, old):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return jnp.where(is_finite | is_forgotten.get(name, False), new, old)

    kept = jax.tree_util.tree_map_with_path(
        select, new, {key: state[key] for key in new}
    )
    return {**kept, "scale": state["scale"].update(~is_finite)}


def selecting(leaf):
    """Make a loop that selects what it keeps leaf by leaf, but for one."""
    step = partial(step_selecting, {name: jnp.bool_(name == leaf) for name in LEAVES})

    def make(scaler: LossScale):
        state = start(scaler)
        return Loop(step, {**state, "opt": CONSTANT.init(state["params"])})

    return make


# -----------------------------------------------------------------------------------------------------
# what is wrong


@dataclass(frozen=True)
class Bug:
    """A loop with one bug, the check that must catch it, and the thread that it is from."""

    make: Callable[..., Loop]
    check: str
    link: str


BUGS: dict[str, Bug] = {}


def bug(check, thread, more=dict, **loop):
    """Register a step under its name; `thread` is ``owner/repository#number``."""
    repository, number = thread.split("#")

    def register(step):
        def make(scaler: LossScale):
            state = start(scaler, **more())
            load = partial(loop["load"], state) if "load" in loop else None
            return Loop(
                step,
                state,
                save=loop.get("save"),
                load=load,
                split=cut if check == SPLIT else None,
            )

        make.__name__ = step.__name__
        BUGS[step.__name__] = Bug(
            make, check, f"https://github.com/{repository}/issues/{number}"
        )
        return step

    return register


@bug(SCALE, "keras-team/keras#19244")
def keras_19244_never_unscaled(state, batch):
    return update(state, gradients(state, batch))


@bug(SKIP, "google/flax#2467")
def flax_2467_old_scale_returned(state, batch):
    return update(state, unscaled(state, batch), scale=state["scale"])


@bug(SKIP, "pyro-ppl/numpyro#956")
def numpyro_956_only_the_loss_is_checked(state, batch):
    grads = unscaled(state, batch)
    return update(state, grads, jnp.isfinite(loss_of(state["params"], batch)))


@bug(SKIP, "google/flax#1251", lambda: {"step": jnp.int32(0)})
def flax_1251_step_counts_on(state, batch):
    return update(state, unscaled(state, batch), step=state["step"] + 1)


def only_the_scale(state):
    return {**state, "scale": float(state["scale"].loss_scale)}


def from_the_scale(fresh, saved):
    return {
        **saved,
        "scale": replace(fresh["scale"], loss_scale=jnp.float32(saved["scale"])),
    }


@bug(RESUME, "facebookresearch/metaseq#3", save=only_the_scale, load=from_the_scale)
def metaseq_3_count_not_saved(state, batch):
    return update(state, unscaled(state, batch))


def micro_batches(state, batch):
    stacked = parts(batch)
    return [
        gradients(state, tuple(array[index] for array in stacked))
        for index in range(len(stacked[0]))
    ]


@jax.jit
def mean(trees):
    return jax.tree.map(lambda *grads: sum(grads) / len(grads), *trees)


@bug(SPLIT, "speechbrain/speechbrain#1936")
def speechbrain_1936_only_the_last_is_checked(state, batch):
    each = micro_batches(state, batch)
    return update(state, unscale(state["scale"], mean(each)), finite(each[-1]))


@bug(LEARNS, "AI-Hypercomputer/maxtext#5021")
def maxtext_5021_new_values_dropped(state, batch):
    return update(state, unscaled(state, batch), params=state["params"])
