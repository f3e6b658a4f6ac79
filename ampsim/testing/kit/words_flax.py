"""The words of flax's DynamicScale, which is a value and makes another one in each iteration."""

# mypy: ignore-errors

from types import SimpleNamespace

import jax.numpy as jnp
from flax.training.dynamic_scale import DynamicScale


def make(init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
    return SimpleNamespace(
        now=DynamicScale(growth_factor, backoff_factor, growth_interval, scale=jnp.float32(init_scale))
    )


def loss_scale(scaler):  # returns what a loss is multiplied by
    return float(scaler.now.scale)


def iterate(scaler, found_inf):  # returns the scale that it used
    used = loss_scale(scaler)
    gradient = scaler.now.value_and_grad(lambda x: x * (jnp.inf if found_inf else 1.0))
    scaler.now = gradient(jnp.float32(1.0)).dynamic_scale
    return used


def iterate_all(scaler, overflows):  # one flag per optimizer; returns the scale that it used
    return iterate(scaler, any(overflows))
