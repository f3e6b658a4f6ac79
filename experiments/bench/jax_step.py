"""What does a compiled JAX training step cost with our loss scale, and with others?

A multilayer perceptron in fp16 with momentum: scaled loss, gradients, unscale, check, a step that a
gradient which is not finite skips, scale updated. The arms differ in the loss scale alone: ours,
flax's, jmp's, or a constant one with optax.apply_if_finite. The floor checks nothing. Of each step:
its time, that of the smallest one, which is mostly dispatch, and the time to trace and compile.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
from flax.training.dynamic_scale import DynamicScale

from ampsim import Rule
from ampsim.jax import LossScale, dynamic_loss_scale, scale_loss, select_tree
from experiments.bench.report import (
    Arms,
    Row,
    measure_arms,
    microseconds,
    require_same,
    run,
)

SIZES = ("1x4", "2x32", "24x32", "3x256")  # layers x width
COMPILED = ("2x32", "24x32")
BATCH, START = 32, 1024.0
SGD: Any = optax.sgd(1e-3, momentum=0.9)
IF_FINITE: Any = optax.apply_if_finite(SGD, max_consecutive_errors=100)
SCALING = dynamic_loss_scale(SGD, START)
Tree = Any
Loss = Callable[[Tree], jax.Array]
Carry = tuple[Tree, Tree, Tree]  # scale, parameters, optimizer's state
Step = Callable[[Tree, Tree, Tree, Loss], Carry]


def with_value_and_grad(scale: Tree, params: Tree, state: Tree, loss: Loss) -> Carry:
    """Step with flax's scale or ours, as flax's users write it."""
    scale, finite, _, grads = scale.value_and_grad(loss)(params)
    return stepped(scale, finite, params, state, grads)


def with_jmp(scale: Tree, params: Tree, state: Tree, loss: Loss) -> Carry:
    grads = scale.unscale(jax.grad(lambda p: scale.scale(loss(p)))(params))
    finite = jmp.all_finite(grads)
    return stepped(scale.adjust(finite), finite, params, state, grads)


def stepped(
    scale: Tree, finite: jax.Array, params: Tree, state: Tree, grads: Tree
) -> Carry:
    updates, after = SGD.update(grads, state, params)
    moved = select_tree(
        finite, (optax.apply_updates(params, updates), after), (params, state)
    )
    return scale, *moved


def with_transformation(scale: Tree, params: Tree, state: Tree, loss: Loss) -> Carry:
    """Step with our wrapper of an optimizer, whose state holds the scale."""
    grads = jax.grad(lambda p: scale_loss(state, loss(p)))(params)
    updates, state = SCALING.update(grads, state, params)
    return scale, optax.apply_updates(params, updates), state


def constant(optimizer: Any) -> Step:
    """Return a step with a constant scale, whose checks are those of the optimizer."""

    def step(scale: Tree, params: Tree, state: Tree, loss: Loss) -> Carry:
        grads = jax.tree.map(
            lambda g: g / scale, jax.grad(lambda p: loss(p) * scale)(params)
        )
        updates, state = optimizer.update(grads, state, params)
        return scale, optax.apply_updates(params, updates), state

    return step


def first_scale(arm: str) -> Tree:
    """Return the scale that an arm begins with."""
    start = jnp.float32(START)
    if arm == "value_and_grad":
        return LossScale.create(Rule(START))
    if arm == "flax":
        return DynamicScale(fin_steps=jnp.int32(0), scale=start)
    return jmp.DynamicLossScale(start, jnp.int32(0)) if arm == "jmp" else start


ARMS: dict[str, tuple[Step, Any]] = {  # the step and its optimizer
    "floor": (constant(SGD), SGD),
    "flax": (with_value_and_grad, SGD),
    "jmp": (with_jmp, SGD),
    "apply_if_finite": (constant(IF_FINITE), IF_FINITE),
    "value_and_grad": (with_value_and_grad, SGD),
    "dynamic_loss_scale": (with_transformation, SCALING),
}
PAIRS = (  # theirs and ours
    ("flax", "value_and_grad"),
    ("jmp", "value_and_grad"),
    ("flax", "dynamic_loss_scale"),
    ("apply_if_finite", "dynamic_loss_scale"),
    ("floor", "value_and_grad"),
    ("floor", "dynamic_loss_scale"),
)


@contextmanager
def trial(size: str, *, compiling: bool = False) -> Iterator[Arms]:
    """Yield a step of every arm, on its own copy of the same parameters, its buffers donated."""
    layers, width = map(int, size.split("x"))
    keys = jax.random.split(jax.random.key(0), layers)
    weights = [np.asarray(jax.random.normal(key, (width, width))) for key in keys]
    x = jax.random.normal(jax.random.key(1), (BATCH, width))
    steps: dict[str, Callable[[Carry], Carry]] = {}
    carry: dict[str, Carry] = {}
    for arm, (step, optimizer) in ARMS.items():
        params = [
            {"w": jnp.array(w * width**-0.5), "b": jnp.zeros(width)} for w in weights
        ]
        carry[arm] = (first_scale(arm), params, optimizer.init(params))
        steps[arm] = compiled(step, x)

    def work(arm: str) -> None:
        carry[arm] = jax.block_until_ready(steps[arm](carry[arm]))  # type: ignore[no-untyped-call]

    def once(arm: str) -> float:
        if compiling:
            jax.clear_caches()  # type: ignore[no-untyped-call]
        return microseconds(lambda: work(arm))

    yield {arm: partial(once, arm) for arm in ARMS}
    # No step was skipped.
    floor = jax.tree.leaves(carry["floor"][1])
    for arm, (_, params, _) in carry.items():
        pairs = zip(jax.tree.leaves(params), floor, strict=True)
        same = all(np.allclose(a, b, 1e-3, 1e-6) for a, b in pairs)
        require_same(f"parameters, {arm}", same)


def compiled(step: Step, x: jax.Array) -> Callable[[Carry], Carry]:
    """Compile a step on the mean square of the outputs, computed in fp16, as float32."""

    def loss(params: Tree) -> jax.Array:
        h = x.astype(jnp.float16)
        for layer in params:
            w, b = (layer[name].astype(jnp.float16) for name in ("w", "b"))
            h = jax.nn.relu(h @ w + b)
        return jnp.mean(h.astype(jnp.float32) ** 2)

    def whole(carry: Carry) -> Carry:
        scale, params, state = carry
        return step(scale, params, state, loss)

    return jax.jit(whole, donate_argnums=0)


def measure(
    sizes: Sequence[str] = SIZES,
    compiled_sizes: Sequence[str] = COMPILED,
    rounds: int = 200,
    trials: int = 5,
) -> list[Row]:
    """Time every arm at every size."""
    rows = []
    for size in sizes:
        times = measure_arms(partial(trial, size), rounds, trials, warm_up=10)
        rows += compared(size, times)
    for size in compiled_sizes:
        made = partial(trial, size, compiling=True)
        times = measure_arms(made, 1, trials, warm_up=1)
        rows += compared(f"{size}, compilation", times)
    return rows


def compared(work: str, times: dict[str, list[float]]) -> list[Row]:
    """Return one row per pair; only for the floor there is no goal."""
    return [
        Row(
            f"{work}, {ours}",
            theirs,
            "us",
            times[ours],
            times[theirs],
            None if theirs == "floor" else 1.0,
        )
        for theirs, ours in PAIRS
    ]


def one_thread() -> None:
    """Compute on the caller's thread; call this before the first array is made.

    A small program may run there or on XLA's thread, as it happens.
    """
    os.environ["XLA_FLAGS"] = (
        "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    )
    name = "jax_cpu_enable_async_dispatch"
    jax.config.update(name, val=False)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    one_thread()
    run("jax_step", measure)
