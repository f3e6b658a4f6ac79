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
from ampsim.jax import dynamic_scale
from tests.examples import examples
from tests.jax.helpers import bits

FLAX = "flax.training.dynamic_scale"
STEPS = 12


@functools.cache
def compiled(cls: type) -> Any:
    def body(scale, x):
        after = scale.value_and_grad(
            lambda p: jnp.sum(p.astype(jnp.float16) * x).astype(jnp.float32)
        )(jnp.ones(2))
        return after.dynamic_scale, (
            after.dynamic_scale.scale,
            after.dynamic_scale.fin_steps,
            after[1:],
        )

    return jax.jit(lambda scale, xs: jax.lax.scan(body, scale, xs)[1])


@pytest.mark.framework("flax")
@settings(max_examples=examples(ms=20))
@given(
    st.sampled_from([(0, 1.0), (1, None), (3, 2.0**-126)]),  # each is compiled
    st.integers(-20, 100),
    st.lists(st.booleans(), max_size=STEPS),
)
@example((0, 1.0), 1, [True] * 3)
def test_scales_are_bit_identical_to_flax(interval_and_low, exponent, history) -> None:
    flax = importlib.import_module(FLAX)
    xs = np.full((STEPS, 2), 2.0**-10, np.float16)
    xs[: len(history)][np.array(history, bool)] = np.inf
    chosen = dict(
        zip(("growth_interval", "minimum_scale"), interval_and_low, strict=True)
    )
    chosen |= {"scale": jnp.float32(2.0**exponent), "fin_steps": jnp.int32(0)}
    ours = compiled(dynamic_scale.DynamicScale)(
        dynamic_scale.DynamicScale(**chosen), xs
    )
    theirs = compiled(flax.DynamicScale)(flax.DynamicScale(**chosen), xs)
    assert bits(ours[:2]) == bits(theirs[:2])
    (finite, _, grad), (wanted, _, expected) = ours[2], theirs[2]
    assert bits(finite) == bits(wanted)
    grad, expected = (np.asarray(each)[np.asarray(finite)] for each in (grad, expected))
    assert bits(grad) == bits(expected)


def test_dynamic_scale_works_in_scan() -> None:
    scale = dynamic_scale.DynamicScale(growth_interval=0)
    body = lambda s, x: (s.value_and_grad(lambda p: p * x)(1.0).dynamic_scale, s.scale)  # noqa: E731
    last, seen = jax.lax.scan(body, scale, jnp.ones(3))
    assert seen.tolist() == [2.0**16, 2.0**17, 2.0**18]
    assert last.to_loss_scale().state == State(2.0**19)


def test_arguments_are_passed_through() -> None:
    asked = []

    def grad(fun, **options):
        asked.append(options)
        return jax.value_and_grad(fun, **options)

    def run(x):
        scale = dynamic_scale.DynamicScale(scale=8.0)
        return scale.value_and_grad(
            lambda p: (p * x, x), has_aux=True, axis_name="d", grad=grad
        )(2.0)

    result = jax.jit(jax.vmap(run, axis_name="d"))(jnp.array([1.0, 3.0]))
    assert (result.grad.tolist(), result.aux[0].tolist(), result.aux[1].tolist()) == (
        [2, 2],
        [2, 6],
        [1, 3],
    )
    assert asked == [{"has_aux": True}]


@pytest.mark.framework("flax")
def test_defaults_and_results_match_flax() -> None:
    flax = importlib.import_module(FLAX)
    ours, theirs = dynamic_scale.DynamicScale(), flax.DynamicScale()
    assert {k: float(v) for k, v in vars(ours).items()} == {
        k: float(v) for k, v in vars(theirs).items()
    }
    assert dynamic_scale.DynamicScaleResult._fields == flax.DynamicScaleResult._fields
    result = jax.jit(
        ours.replace(scale=8.0).value_and_grad(lambda _, p, *, k: p * k, argnums=1)
    )(5.0, 2.0, k=3.0)
    assert (
        float(result.aux),
        float(result.grad),
        int(result.dynamic_scale.fin_steps),
    ) == (
        6.0,
        3.0,
        1,
    )
