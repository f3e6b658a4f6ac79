"""A flax loop runs with one import changed, and to the last bit as with flax's own class."""

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim import State
from ampsim.jax import LossScale, dynamic_scale, interop
from tests.examples import examples
from tests.jax.helpers import bits

FLAX = "flax.training.dynamic_scale"
STEPS = 12


def run(module: str, **settings) -> tuple[Any, list[Any]]:
    """The mixed-precision loop of flax's ImageNet example on a small network, two replicas; overflow on one of them."""
    import optax
    from flax import linen as nn
    from flax.training import train_state

    dynamic_scale_lib = importlib.import_module(module)  # the one line that changes

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dense(8, dtype=jnp.float16)(x)
            x = nn.BatchNorm(use_running_average=False, axis_name="batch", dtype=jnp.float16)(x)
            return nn.Dense(3, dtype=jnp.float16)(nn.relu(x))

    class TrainState(train_state.TrainState):
        batch_stats: Any
        dynamic_scale: dynamic_scale_lib.DynamicScale

    def train_step(state, batch):
        def loss_fn(params):
            variables = {"params": params, "batch_stats": state.batch_stats}
            logits, new_model_state = state.apply_fn(variables, batch["image"], mutable=["batch_stats"])
            loss = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]))
            decay = sum(jnp.sum(x**2) for x in jax.tree.leaves(params) if x.ndim > 1)
            return loss + 5e-5 * decay, (new_model_state, logits)

        dynamic_scale = state.dynamic_scale
        assert dynamic_scale  # the example asks `if dynamic_scale:`
        grad_fn = dynamic_scale.value_and_grad(loss_fn, has_aux=True, axis_name="batch")
        dynamic_scale, is_fin, aux, grads = grad_fn(state.params)
        new_state = state.apply_gradients(grads=grads, batch_stats=aux[1][0]["batch_stats"])
        choose = functools.partial(jax.tree.map, functools.partial(jnp.where, is_fin))
        new_state = new_state.replace(
            opt_state=choose(new_state.opt_state, state.opt_state),
            params=choose(new_state.params, state.params),
            dynamic_scale=dynamic_scale,
        )
        return new_state, {"loss": aux[0], "scale": dynamic_scale.scale}

    images = jax.random.normal(jax.random.key(1), (STEPS, 2, 4, 5))
    images = images.at[3, 1].set(jnp.inf)
    labels = jax.random.randint(jax.random.key(2), (STEPS, 2, 4), 0, 3)
    net = Net()
    variables = jax.jit(lambda key, x: nn.Module.init(net.clone(), key, x))(jax.random.key(0), images[0, 0])
    state = TrainState.create(
        apply_fn=net.apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        tx=optax.sgd(0.1, momentum=0.9, nesterov=True),
        dynamic_scale=dynamic_scale_lib.DynamicScale(**settings),
    )
    state = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * 2), state)
    step = jax.jit(jax.vmap(train_step, axis_name="batch"))
    log = []
    for image, label in zip(images, labels, strict=True):
        state, metrics = step(state, {"image": image, "label": label})
        log.append((metrics["scale"], metrics["loss"]))
    return state, log


@pytest.mark.peer("flax", "optax")
def test_flaxs_imagenet_loop_runs_with_one_import_changed() -> None:
    settings = {"growth_interval": 3, "scale": jnp.float32(2.0**15), "fin_steps": jnp.int32(0)}
    ours, our_log = run("ampsim.jax.dynamic_scale", **settings)
    theirs, their_log = run(FLAX, **settings)
    scales = [float(scale[0]) for scale, _ in our_log]
    assert scales == [float(scale[1]) for scale, _ in their_log]
    assert min(scales) < 2.0**15 < max(scales)
    assert bits(ours) == bits(theirs)
    finite = [jnp.isfinite(loss[0]) for _, loss in our_log]
    assert not all(finite)
    assert bits([loss for (_, loss), ok in zip(our_log, finite, strict=True) if ok]) == bits(
        [loss for (_, loss), ok in zip(their_log, finite, strict=True) if ok]
    )


@functools.cache
def compiled(cls: type) -> Any:
    def body(scale, x):
        after = scale.value_and_grad(lambda p: jnp.sum(p.astype(jnp.float16) * x).astype(jnp.float32))(jnp.ones(2))
        return after.dynamic_scale, (after.dynamic_scale.scale, after.dynamic_scale.fin_steps, after[1:])

    return jax.jit(lambda scale, xs: jax.lax.scan(body, scale, xs)[1])


@pytest.mark.peer("flax")
@settings(max_examples=examples(ms=20))
@given(
    st.sampled_from([(0, 1.0), (1, None), (3, 2.0**-126)]),  # each is compiled
    st.integers(-20, 100),
    st.lists(st.booleans(), max_size=STEPS),
)
@example((0, 1.0), 1, [True] * 3)
def test_any_history_is_flaxs_to_the_last_bit(interval_and_low, exponent, history) -> None:
    flax = importlib.import_module(FLAX)
    xs = np.full((STEPS, 2), 2.0**-10, np.float16)
    xs[: len(history)][np.array(history, bool)] = np.inf
    chosen = dict(zip(("growth_interval", "minimum_scale"), interval_and_low, strict=True))
    chosen |= {"scale": jnp.float32(2.0**exponent), "fin_steps": jnp.int32(0)}
    ours = compiled(dynamic_scale.DynamicScale)(dynamic_scale.DynamicScale(**chosen), xs)
    theirs = compiled(flax.DynamicScale)(flax.DynamicScale(**chosen), xs)
    assert bits(ours[:2]) == bits(theirs[:2])
    (finite, _, grad), (wanted, _, expected) = ours[2], theirs[2]
    assert bits(finite) == bits(wanted)
    grad, expected = (np.asarray(each)[np.asarray(finite)] for each in (grad, expected))
    assert bits(grad) == bits(expected)


@pytest.mark.peer("flax")
def test_arguments_defaults_and_results_are_flaxs() -> None:
    flax = importlib.import_module(FLAX)
    ours, theirs = dynamic_scale.DynamicScale(), flax.DynamicScale()
    assert {k: float(v) for k, v in vars(ours).items()} == {k: float(v) for k, v in vars(theirs).items()}
    assert list(vars(ours)) == list(vars(theirs))
    assert interop.from_flax(theirs) == ours.loss_scale == interop.from_flax(ours)
    assert dynamic_scale.DynamicScaleResult._fields == flax.DynamicScaleResult._fields
    result = jax.jit(ours.replace(scale=8.0).value_and_grad(lambda _, p, *, k: p * k, argnums=1))(5.0, 2.0, k=3.0)
    assert (float(result.aux), float(result.grad), int(result.dynamic_scale.fin_steps)) == (6.0, 3.0, 1)
    assert ours.value_and_grad(run).__name__ == "run"
    with jax.enable_x64(True):
        wide = dynamic_scale.DynamicScale(fin_steps=np.int64(1), scale=np.float64(2.0)).loss_scale
    assert (wide.growth_tracker.dtype, wide.loss_scale.dtype) == ("int32", "float32")
    by_second = functools.partial(jax.value_and_grad, argnums=1)
    assert float(jax.jit(ours.value_and_grad(lambda p, q: p * q, grad=by_second))(2.0, 3.0).grad) == 2.0


def test_it_is_carried_by_a_scan_and_traced_once() -> None:
    scale = dynamic_scale.DynamicScale(growth_interval=0)
    body = lambda s, x: (s.value_and_grad(lambda p: p * x)(1.0).dynamic_scale, s.scale)  # noqa: E731
    last, seen = jax.lax.scan(body, scale, jnp.ones(3))
    assert seen.tolist() == [2.0**16, 2.0**17, 2.0**18]
    assert isinstance(last.loss_scale, LossScale)
    assert last.loss_scale.state == State(2.0**19)
    traces = []
    step = jax.jit(lambda s: (traces.append(s), s.value_and_grad(lambda p: p * p)(1.0).dynamic_scale)[1])
    for _ in range(3):
        scale = step(scale)
    assert len(traces) == 1
