"""What does a compiled JAX training step cost with our loss scale, and with others?

A multilayer perceptron in fp16 with momentum: scaled loss, gradients, unscale, check, a step that a
gradient which is not finite skips, scale updated. The arms differ in the loss scale alone: ours,
flax's, jmp's, or a constant one with optax.apply_if_finite. The floor checks nothing. Of each step:
its time, that of the smallest one, which is mostly dispatch, the time to trace and compile, and the
number of instructions of the compiled program.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
from flax.training.dynamic_scale import DynamicScale

from ampsim import Rule
from ampsim.jax import LossScale, dynamic_loss_scale, scale_loss, select_tree
from experiments.bench.report import SHARE, Row, require_same, run
from experiments.bench.rounds import in_turn

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


class Trial:
    """Every arm on its own copy of the same parameters, its buffers donated."""

    def __init__(self, size: str) -> None:
        layers, width = map(int, size.split("x"))
        keys = jax.random.split(jax.random.key(0), layers)
        weights = [np.asarray(jax.random.normal(key, (width, width))) for key in keys]
        x = jax.random.normal(jax.random.key(1), (BATCH, width))
        self.steps: dict[str, Callable[[Carry], Carry]] = {}
        self.carry: dict[str, Carry] = {}
        for arm, (step, optimizer) in ARMS.items():
            params = [
                {"w": jnp.array(w * width**-0.5), "b": jnp.zeros(width)}
                for w in weights
            ]
            self.carry[arm] = (first_scale(arm), params, optimizer.init(params))
            self.steps[arm] = compiled(step, x)

    def compile(self, arm: str) -> float:
        """Trace, compile, and run a step; return the milliseconds."""
        jax.clear_caches()  # type: ignore[no-untyped-call]
        return self.once(arm) / 1e3

    def instructions(self, arm: str) -> float:
        """Return the number of instructions of a compiled step, those inside fusions included."""
        program = self.steps[arm].lower(self.carry[arm]).compile()  # type: ignore[attr-defined]
        return float(sum(" = " in line for line in program.as_text().splitlines()))

    def once(self, arm: str) -> float:
        """Make one step and return its microseconds."""
        start = time.process_time()
        self.carry[arm] = ready(self.steps[arm](self.carry[arm]))
        return 1e6 * (time.process_time() - start)

    def require_same(self) -> None:
        """Raise where the parameters of an arm are not those of the floor: no step was skipped."""
        floor = jax.tree.leaves(self.carry["floor"][1])
        for arm, (_, params, _) in self.carry.items():
            pairs = zip(jax.tree.leaves(params), floor, strict=True)
            require_same(
                f"parameters, {arm}",
                all(np.allclose(a, b, 1e-3, 1e-6) for a, b in pairs),
            )


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


def ready(carry: Carry) -> Carry:
    return jax.block_until_ready(carry)  # type: ignore[no-untyped-call,no-any-return]


def measure(
    sizes: Sequence[str] = SIZES, rounds: int = 200, trials: int = 5
) -> list[Row]:
    """Time every arm at every size."""
    rows = [row for size in sizes for row in measure_time(size, rounds, trials)]
    return rows + [
        row for size in COMPILED for row in measure_compilation(size, trials)
    ]


def measure_time(size: str, rounds: int, trials: int) -> list[Row]:
    """Time the steps of one size."""
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for _ in range(trials):
        trial = Trial(size)
        for arm, each in in_turn([*ARMS], trial.once, rounds, 10).items():
            times[arm].append(statistics.median(each))
        trial.require_same()
    return compared(size, "us", times)


def measure_compilation(size: str, trials: int) -> list[Row]:
    """Count the instructions of the steps of one size, and time their compilation."""
    trial = Trial(size)
    milliseconds = in_turn([*ARMS], trial.compile, trials, 1)
    counted = [arm for arm in ARMS if arm != "jmp"]  # its class cannot be lowered
    counts = {arm: [trial.instructions(arm)] for arm in counted}
    compilation = compared(f"{size}, compilation", "ms", milliseconds)
    return compilation + compared(f"{size}, program", "instructions", counts)


def compared(work: str, unit: str, figures: Mapping[str, list[float]]) -> list[Row]:
    """Return one row per pair, with the goal of no more than theirs, or no goal for the floor."""
    return [
        Row(
            f"{work}, {us}",
            them,
            unit,
            figures[us],
            figures[them],
            SHARE,
            goal_of(them),
        )
        for them, us in PAIRS
        if them in figures
    ]


def goal_of(them: str) -> float | None:
    return None if them == "floor" else 1.0


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
