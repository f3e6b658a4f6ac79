"""What do a loss scale and the delayed scales of an fp8 layer do to each other, in flax's and in Keras' own code?

An fp8 layer divides a tensor by a scale that comes from the largest magnitudes of earlier steps, and its format
saturates. Its window of magnitudes is handed on as the gradient of the layer's state, so that a loss scaler meets it.

- `kept`, `overwritten`, `unseen`: flax's ``Fp8DirectDotGeneralOp`` with window H, its output cast to fp16, and a loss
  scale with interval G, over gradients that walk. A step that overflows keeps all state, as flax's example does; or
  the fp8 state is written always; or, besides, only the gradients of parameters are searched for an overflow;
- `division`: ``DynamicScale`` of flax, and ours, for three steps: the output of the layer over the true one;
- `tiny`: six steps of inputs of 1e-37 in flax's layer with H = 4, then normal ones; what is not finite is skipped;
- `lag`: how much the scale can hold that each step of a doubling input is divided by, in flax and in Keras;
- `keras`: Keras' fp8 Dense below its ``LossScaleOptimizer``, in an environment of ``make peers``; where there is none,
  the record is that of the committed data. Two batches hold an inf.

Device: cpu.
"""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen import fp8_ops
from flax.training.dynamic_scale import DynamicScale
from rich.table import Table

import ampsim.jax.dynamic_scale
from ampsim import Rule, records
from ampsim.jax import LossScale, all_finite
from ampsim.peers import environments
from ampsim.records import Record
from experiments import runner

DEVICES = ("cpu",)
REQUIRES = ("jax", "flax")
STATE, OP = fp8_ops.OVERWRITE_WITH_GRADIENT, "Fp8DirectDotGeneralOp_0"
E4M3, E5M2 = 448.0, 57344.0  # the largest magnitudes
LOOPS = ("kept", "overwritten", "unseen")
RESTS = ("division", "tiny", "lag", "keras")
DOUBLING = [2.0**n for n in range(8)]
KERAS = """
import json, sys, keras, numpy as np
doubling, infinite = json.loads(sys.argv[1])
def layer(*rest):
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.layers[0].quantize("float8")
    scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.0), initial_scale=2.0**10)
    model.compile(optimizer=scaler, loss="mse")
    return model, model.layers[0], scaler
def step(model, value):
    model.train_on_batch(np.full((1, 1), value, "float32"), np.zeros((1, 1), "float32"))
model, dense, _ = layer()
holds = []
for value in doubling:
    holds.append(448 * float(np.ravel(dense.inputs_scale.value)[0]))
    step(model, value)
model, dense, scaler = layer()
seen = []
for value in infinite:
    step(model, value)
    found = (dense.inputs_scale.value, np.max(dense.inputs_amax_history.value), scaler.dynamic_scale.value)
    seen.append([float(np.ravel(each)[0]) for each in found])
print(json.dumps({"version": keras.__version__, "holds": holds, "seen": seen}))
"""
INFINITE = [3.0, 3.0, 3.0, float("inf"), 3.0, float("inf"), 3.0]


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 6_000  # per loop
    seeds: tuple[int, ...] = (0,)  # of the walk
    intervals: tuple[int, ...] = (400,)  # G
    windows: tuple[int, ...] = (16, 1024)  # H; 1024 is flax's default
    asks: Annotated[tuple[str, ...], runner.one_of((*LOOPS, *RESTS))] = (*LOOPS, *RESTS)


SMOKE = Config(steps=100, intervals=(20,), windows=(4,), asks=("kept", "lag"))


@dataclass(frozen=True)
class Arm:
    """A question, and for a loop its growth interval and its window."""

    asks: str
    growth_interval: int | None = None
    window: int | None = None


def arms(config: Config) -> Mapping[str, Arm]:
    loops = [Arm(asks, g, h) for asks in LOOPS for g in config.intervals for h in config.windows]
    named = {f"{arm.asks} G={arm.growth_interval} H={arm.window}": arm for arm in loops} | {n: Arm(n) for n in RESTS}
    return {name: arm for name, arm in named.items() if arm.asks in config.asks}


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Answer one question; the columns are explained in `data/README.md`."""
    found = trained(arm, config.steps, seed) if arm.asks in LOOPS else ASKED[arm.asks]()
    tick(config.steps)
    return found


def dense(window: int = 4, features: int = 1) -> nn.Dense:
    return nn.Dense(
        features, use_bias=False, dot_general_cls=partial(nn.Fp8DirectDotGeneralOp, amax_history_length=window)
    )


def trained(arm: Arm, steps: int, seed: int) -> Record:
    """Run one loop: the true gradient of the output walks by 0.05 bits, and its scaled one is cast to fp16."""
    assert arm.growth_interval is not None  # noqa: S101 - for mypy
    assert arm.window is not None  # noqa: S101
    walk = np.clip(np.cumsum(np.random.default_rng(seed).choice([-0.05, 0.05], steps)), -6, 6) + 2
    layer, x = dense(arm.window), jnp.ones((1, 1))
    rule = Rule(2.0**10, growth_interval=arm.growth_interval, min_scale=2.0**-126)

    def step(carry: tuple[Any, LossScale], true: Any) -> tuple[tuple[Any, LossScale], Any]:
        state, scaler = carry

        def loss(state: Any) -> Any:
            out = layer.apply(state, x).astype(jnp.float16)
            return (out.astype(jnp.float32) * true).sum() * scaler.loss_scale

        grads = jax.grad(loss)(state)
        before, after = (tree[STATE][OP] for tree in (state, grads))
        finite = all_finite(grads["params"] if arm.asks == "unseen" else grads)
        write = finite | (arm.asks != "kept")
        fp8 = jax.tree.map(lambda new, old: jnp.where(write, new, old), grads[STATE], state[STATE])
        largest = after["output_grad_amax_history"][0]  # of this step, before the layer's own quantizer
        seen = {
            "scale": scaler.loss_scale,
            "overflow": ~jnp.isfinite(largest),
            "skipped": ~finite,
            "finite": all_finite(grads["params"]),
            "frozen": ~jnp.isfinite(before["output_grad_amax_history"]).all(),
            "saturated": largest > 1.0001 * E5M2 * after["output_grad_scale"][0],
        }
        return ({**state, STATE: fp8}, scaler.update(~finite)), seen

    start = layer.init(jax.random.key(seed), x), LossScale.create(rule)
    _, found = jax.jit(lambda start: jax.lax.scan(step, start, jnp.asarray(2.0**walk, jnp.float32)))(start)
    return counted({name: np.asarray(column) for name, column in found.items()})


def counted(found: Mapping[str, Any]) -> Record:
    """Return what a loop is judged by, of its columns, (steps,) each."""
    overflow, skipped = found["overflow"], found["skipped"]
    grown = np.flatnonzero(np.diff(found["scale"]) > 0) + 1
    grown = grown[~overflow[grown]]
    clean = ~overflow & ~skipped
    runs = np.diff(np.flatnonzero(np.diff([0, *skipped.astype(int), 0])))[::2]
    return {
        "overflows": int(overflow.sum()),
        "finite_gradients": int((overflow & found["finite"]).sum()),
        "skipped": int(skipped.sum()),
        "longest": int(max(runs, default=0)),
        "frozen": float(found["frozen"].mean()),
        "saturated": float(found["saturated"][clean].mean()) if clean.any() else None,
        "growths": len(grown),
        "saturated_growths": int(found["saturated"][grown].sum()),
        "log2_scale": [round(float(x), 3) for x in np.log2(found["scale"][:: max(1, len(skipped) // 200)])],
    }


def division() -> Record:
    """Return the layer's output over the true one after three steps below each scaler, by log2 of the loss scale."""
    layer, x = dense(1024, 4), jnp.full((4, 4), 3.0)
    start = layer.init(jax.random.key(0), x)
    true = nn.Dense(4, use_bias=False).apply({"params": start["params"]}, x)
    makers = {"flax": DynamicScale, "ours": ampsim.jax.dynamic_scale.DynamicScale}
    ratios: dict[str, list[list[float]]] = {name: [] for name in makers}
    for name, make in makers.items():
        for log2 in (0, 4, 8, 12, 16):
            state, scaler = start, make(scale=2.0**log2)
            for _ in range(3):
                scaler, _, _, grads = scaler.value_and_grad(  # ampsim: ignore[AMP118]
                    lambda state: layer.apply(state, x).sum()
                )(state)
                state = {"params": state["params"], STATE: grads[STATE]}
            ratios[name].append([log2, float(jnp.abs(layer.apply(state, x)).max() / jnp.abs(true).max())])
    return {"ratios": ratios}


def tiny() -> Record:
    """Return which of 60 steps are skipped: inputs of 1e-37 and 0 for six steps, then of 1, 2 and 0; no loss scale."""
    layer, state, skipped = dense(4, 2), None, []
    for step in range(60):
        x = jnp.diag(jnp.array([1e-37, 1e-37] if step < 6 else [1.0, 2.0]))
        state = state or layer.init(jax.random.key(0), jnp.ones((2, 2)))
        grads = jax.grad(lambda state, x=x: layer.apply(state, x).sum())(state)
        skipped.append(not bool(all_finite(grads)))
        state = state if skipped[-1] else {"params": state["params"], STATE: grads[STATE]}
    assert state is not None  # noqa: S101 - for mypy
    return {
        "skipped": [step for step, skip in enumerate(skipped) if skip],
        "scale": float(state[STATE][OP]["input_scale"][0]),
    }


def lag() -> Record:
    """Return the largest input that the scale of each step holds, in flax's layer, whose inputs double."""
    layer, holds = dense(1024), []
    state = layer.init(jax.random.key(0), jnp.ones((1, 1)))
    for value in DOUBLING:
        grads = jax.grad(lambda state, value=value: layer.apply(state, jnp.full((1, 1), value)).sum())(state)
        state = {"params": state["params"], STATE: grads[STATE]}
        holds.append(E4M3 * float(state[STATE][OP]["input_scale"][0]))  # flax quantizes with the scale that it stores
    return {"inputs": DOUBLING, "holds": holds}


def keras() -> Record:
    """Return what Keras' scale holds when inputs double, and its input scale, window and loss scale by step."""
    try:
        python = environments.python("numpy2")
    except environments.NoEnvironmentError:
        path = runner.DATA / "cpu" / "fp8_interference.jsonl"
        rows = [row for row in records.read(path)[1] if row["arm"] == "keras"] if path.exists() else []
        kept = ("version", "inputs", "holds", "batches", "seen")
        return {name: rows[0][name] for name in kept} if rows else dict.fromkeys(kept)
    command = [python, "-c", KERAS, json.dumps([DOUBLING, INFINITE])]
    variables = {**environments.variables("numpy2"), "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)  # noqa: S603
    return {"inputs": DOUBLING, "batches": INFINITE, **json.loads(done.stdout.splitlines()[-1])}


ASKED: dict[str, Callable[[], Record]] = {"division": division, "tiny": tiny, "lag": lag, "keras": keras}


def table(rows: Sequence[Record]) -> Table:
    """Return what became of each loop, and in words of the rest."""
    names = (
        "overflows",
        "finite_gradients",
        "skipped",
        "longest",
        "frozen",
        "saturated",
        "growths",
        "saturated_growths",
    )
    shown = Table("arm", *names)
    for row in rows:
        if "overflows" in row:
            shown.add_row(row["arm"], *(f"{row[name]:.4g}" if row[name] is not None else "-" for name in names))
    rest = [row for row in rows if "overflows" not in row]
    kept = ("ratios", "skipped", "scale", "holds", "seen", "version")
    shown.caption = "\n".join(f"{row['arm']}: { ({name: row[name] for name in kept if name in row}) }" for row in rest)
    return shown


if __name__ == "__main__":
    raise SystemExit(runner.main("fp8_interference"))
