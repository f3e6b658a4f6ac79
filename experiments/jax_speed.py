"""What does a compiled JAX training step cost with our loss scale, with flax's and with jmp's?

One step of a multilayer perceptron in fp16: scaled loss, gradients, unscale, check, SGD with momentum that a
non-finite gradient skips, scale updated. The same lines in every arm but for the loss scale, compiled by ``jit``,
side by side in one run and interleaved, one XLA thread. `bare` scales by a constant and checks nothing.

Needs flax and jmp. Device: cpu; the clock is the process's CPU time, which
others on a shared machine do not enter.
"""

import os
import tempfile

# Read when jax is first imported.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from ampsim import Rule
from ampsim.jax import LossScale, all_finite, select_tree
from ampsim.records import Record
from experiments import runner
from experiments.timing.rounds import in_turn, spread

# A small program may run on the caller's thread or on XLA's, as it happens: 25 us, a third of the smallest step.
jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]  # noqa: FBT003 - jax's own

REPEATS = False  # it measures time
REQUIRES = ("jax", "flax", "jmp")
RATE, MOMENTUM = 1e-3, 0.9
Params = list[dict[str, jax.Array]]
Scale = Any  # ours, flax's, jmp's or a number
Grads = tuple[Scale, jax.Array, Params]  # the new loss scale, whether finite, unscaled gradients
Carry = tuple[Params, Params, Scale]  # parameters, their velocity
Step = Callable[[Params, Params, Scale, jax.Array], Carry]
DEVICES = ("cpu",)


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 200  # rounds of one trial; each round times every arm once
    seeds: tuple[int, ...] = (0,)  # of parameters and batch
    trials: int = 3  # each with its programs and buffers at new addresses
    # layers x width
    sizes: Annotated[tuple[str, ...], runner.like(r"[1-9]\d*x[1-9]\d*", "2x32")] = ("2x32", "24x32", "3x256")
    batch: int = 32


SMOKE = Config(steps=3, trials=1, sizes=("1x8",))


def arms(config: Config) -> Mapping[str, runner.Single]:
    return {"SGD": runner.Single()}


# ---------------------------------------------------------------------------------------------------- the arms


def bare(scale: Scale, loss: Callable[[Params], jax.Array], params: Params) -> Grads:
    grads = jax.grad(lambda p: loss(p) * scale)(params)
    return scale, jnp.bool_(1), jax.tree.map(lambda g: g / scale, grads)


def ours(scale: LossScale, loss: Callable[[Params], jax.Array], params: Params) -> Grads:
    grads = scale.unscale(jax.grad(lambda p: scale.scale(loss(p)))(params))
    finite = all_finite(grads)
    return scale.update(~finite), finite, grads


def ours_value_and_grad(scale: LossScale, loss: Callable[[Params], jax.Array], params: Params) -> Grads:
    scale, finite, _, grads = scale.value_and_grad(loss)(params)
    return scale, finite, grads


def of_flax(scale: Scale, loss: Callable[[Params], jax.Array], params: Params) -> Grads:
    scale, finite, _, grads = scale.value_and_grad(loss)(params)
    return scale, finite, grads


def of_jmp(scale: Scale, loss: Callable[[Params], jax.Array], params: Params) -> Grads:
    import jmp

    grads = scale.unscale(jax.grad(lambda p: scale.scale(loss(p)))(params))
    finite = jmp.all_finite(grads)
    return scale.adjust(finite), finite, grads


def flax_scale() -> Scale:
    from flax.training.dynamic_scale import DynamicScale

    return DynamicScale(fin_steps=jnp.int32(0), scale=jnp.float32(1024))  # type: ignore[no-untyped-call,unused-ignore]


def jmp_scale() -> Scale:
    import jmp

    return jmp.DynamicLossScale(jnp.float32(1024.0), jnp.int32(0))


ARMS: dict[str, tuple[Callable[..., Grads], Callable[[], Scale]]] = {  # gradients, first loss scale
    "bare": (bare, lambda: jnp.float32(1024.0)),
    "ours": (ours, lambda: LossScale.create(Rule(1024.0))),
    "ours, value_and_grad": (ours_value_and_grad, lambda: LossScale.create(Rule(1024.0))),
    "flax": (of_flax, flax_scale),
    "jmp": (of_jmp, jmp_scale),
}
RATIOS = {"flax": "ours, value_and_grad", "jmp": "ours"}  # each peer beside what is written as it is


# ---------------------------------------------------------------------------------------------------- the step


def make(layers: int, width: int, seed: int) -> Params:
    keys = jax.random.split(jax.random.key(seed), layers)
    return [{"w": jax.random.normal(key, (width, width)) * width**-0.5, "b": jnp.zeros(width)} for key in keys]


def loss_of(x: jax.Array) -> Callable[[Params], jax.Array]:
    """Return the mean square of the outputs, computed in fp16, as float32."""

    def loss(params: Params) -> jax.Array:
        h = x.astype(jnp.float16)
        for layer in params:
            h = jax.nn.relu(h @ layer["w"].astype(jnp.float16) + layer["b"].astype(jnp.float16))
        return jnp.mean(h.astype(jnp.float32) ** 2)

    return loss


def compiled(gradients: Callable[..., Grads], *, checks: bool) -> Step:
    """Compile the whole step, its buffers donated."""

    def step(params: Params, velocity: Params, scale: Scale, x: jax.Array) -> Carry:
        scale, finite, grads = gradients(scale, loss_of(x), params)
        moving = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, grads)
        moved = jax.tree.map(lambda p, v: p - RATE * v, params, moving)
        if checks:
            moved, moving = select_tree(finite, (moved, moving), (params, velocity))
        return moved, moving, scale

    return jax.jit(step, donate_argnums=(0, 1, 2))


class Trial:
    """Every arm on its own copy of the same parameters."""

    def __init__(self, size: str, config: Config, seed: int) -> None:
        layers, width = map(int, size.split("x"))
        self.x = jax.random.normal(jax.random.key(seed + 1), (config.batch, width))
        self.steps = {arm: compiled(gradients, checks=arm != "bare") for arm, (gradients, _) in ARMS.items()}
        self.carry = {
            arm: (make(layers, width, seed), jax.tree.map(jnp.zeros_like, make(layers, width, seed)), first())
            for arm, (_, first) in ARMS.items()
        }

    def once(self, arm: str) -> float:
        """Make one step and return its seconds."""
        start = time.process_time()
        self.carry[arm] = jax.block_until_ready(self.steps[arm](*self.carry[arm], self.x))  # type: ignore[no-untyped-call]
        return time.process_time() - start


def run(config: Config, arm: runner.Single, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Time every size."""
    with kept_programs():
        rows = [{"size": size, **measure(size, config, seed, tick)} for size in config.sizes]
    return {"clock": "process CPU time", "rows": rows}


@contextmanager
def kept_programs() -> Iterator[None]:
    """Keep compiled programs in a folder: a later trial loads them, which takes a sixth of the time of compiling."""
    limits = {"jax_persistent_cache_min_compile_time_secs": 0.0, "jax_persistent_cache_min_entry_size_bytes": -1}
    before = {name: getattr(jax.config, name) for name in (*limits, "jax_compilation_cache_dir")}
    with tempfile.TemporaryDirectory(prefix="ampsim-jax-") as folder:
        try:
            for name, value in {**limits, "jax_compilation_cache_dir": folder}.items():
                jax.config.update(name, value)  # type: ignore[no-untyped-call]
            yield
        finally:
            for name, value in before.items():
                jax.config.update(name, value)  # type: ignore[no-untyped-call]
            reset_cache()  # or jax would go on writing to the folder


def measure(size: str, config: Config, seed: int, tick: Callable[[int], None]) -> Record:
    """Time every arm at one size, over all trials."""
    medians: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for _ in range(config.trials):
        trial = Trial(size, config, seed)
        for name, times in in_turn([*ARMS], trial.once, config.steps, tick, warm_up=10).items():
            medians[name].append(1e6 * median(times))
    return summary(medians)


def summary(medians: dict[str, list[float]]) -> Record:
    """Return microseconds of each arm and the ratios ours / theirs, one per trial."""
    ratios = {
        peer: [round(a / b, 3) for a, b in zip(medians[arm], medians[peer], strict=True)]
        for peer, arm in RATIOS.items()
    }
    return {"microseconds": {arm: [round(t, 1) for t in times] for arm, times in medians.items()}, "ratios": ratios}


def table(records: Sequence[Record]) -> str:
    """Return what `make bench` prints: the middle trial, and the lowest and highest ratio."""
    rows = records[0]["rows"]
    lines = [f"{'layers x width':<16}" + "".join(f"{arm:>22}" for arm in ARMS)]
    lines += [
        f"{row['size']:<16}" + "".join(f"{median(row['microseconds'][arm]):22.1f}" for arm in ARMS) for row in rows
    ]
    lines.append("microseconds per step; ours / theirs (lowest to highest trial):")
    for row in rows:
        ratios = (f"{peer} {spread(values)}" for peer, values in row["ratios"].items())
        lines.append(f"{row['size']:<16}" + "   ".join(ratios))
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(runner.main("jax_speed"))
