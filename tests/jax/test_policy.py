"""The same lines under JAX: equal to core's, traced once, with no leaf lost."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ampsim.core.machine import init, override
from ampsim.core.policies import (
    Deduplicated,
    Headroom,
    LogMax,
    Observation,
    Policy,
    Probe,
    flatten,
)
from ampsim.core.replay.fold import states
from ampsim.jax.policy import PolicyScale

EXACT: list[Policy] = [  # each is compiled; test_policy_sweep asks for grids of each
    Deduplicated(growth_interval=1, delay=2, growth_factor=1e6, backoff_factor=1e-6),
    Probe(growth_interval=2, delay=3, min_scale=1.0, max_scale=2.0**18),
    Headroom(interval=1, margin=12, delay=2, init_scale=1.0),
]
LOG_MAX: list[Policy] = [LogMax(delay=2, beta1=0.9)]
STEPS, RUNS = 24, 40


def name(policy: Policy) -> str:
    return type(policy).__name__


def histories(runs: int = RUNS) -> tuple[np.ndarray, np.ndarray]:
    """Flags and amax, (runs, STEPS) each: magnitudes of every binade, zeros, subnormals and
    infinities.
    """
    draw, shape = np.random.default_rng(0), (runs, STEPS)
    odd = draw.choice(
        [0.0, 2.0**-149, 2.0**-127, 2.0**-126, 65504.0, 65504.0 / 2, np.inf], shape
    )
    wide = 2.0 ** draw.uniform(-126, 127, shape)
    near = 2.0 ** draw.uniform(-4, 4, shape)
    amax = np.choose(draw.integers(0, 3, shape), [odd, wide, near]).astype(np.float32)
    return draw.random(shape) < 0.2, amax


@jax.jit
def scanned(scale: PolicyScale, found: jax.Array, amax: jax.Array) -> Any:
    def step(carry: PolicyScale, row: Any) -> Any:
        after = carry.update(*row)
        return after, after

    return jax.lax.scan(step, scale, (found, amax))


def in_jax(policy: Policy, found: Any, amax: Any) -> np.ndarray:
    """Every number of the state after each update, (runs, STEPS, numbers)."""
    rows = (
        jnp.array(found),
        jnp.array(amax, jnp.float32),
    )
    _, after = jax.vmap(scanned, in_axes=(None, 0, 0))(
        PolicyScale.create(policy), *rows
    )
    return np.stack(
        [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(after)], axis=-1
    )


def in_core(policy: Policy, found: Any, amax: Any) -> np.ndarray:
    runs = zip(found, amax, strict=True)
    return np.array(
        [
            [flatten(state) for state in states(policy, map(Observation, *run))]
            for run in runs
        ]
    )


@pytest.mark.parametrize("policy", EXACT, ids=name)
def test_policy_state_matches_core_exactly(policy: Policy) -> None:
    assert np.array_equal(in_jax(policy, *histories()), in_core(policy, *histories()))


@pytest.mark.parametrize("policy", LOG_MAX, ids=name)
def test_log_max_matches_core_approximately(policy: Policy) -> None:
    found, _ = histories()
    amax = 2.0 ** np.random.default_rng(1).uniform(-12, 12, found.shape)
    amax[: RUNS // 2] = amax[: RUNS // 2, :1]  # no deviation: the worst case
    ours, core = (side(policy, found, amax) for side in (in_jax, in_core))
    # sigma is the root of a difference of squares: half of their digits, times 3.09, in the
    # exponent. It comes back into the averages by way of the scale that overflowed.
    np.testing.assert_allclose(np.log2(ours[..., 0]), np.log2(core[..., 0]), atol=0.1)
    np.testing.assert_allclose(
        ours[..., 1 + policy.delay :],
        core[..., 1 + policy.delay :],
        rtol=1e-3,
        atol=0.02,
    )


@pytest.mark.parametrize("policy", [*EXACT, *LOG_MAX], ids=name)
def test_initial_state_matches_core_and_types(policy: Policy) -> None:
    scale = PolicyScale.create(policy)
    leaves = jax.tree.leaves(scale)
    assert [leaf.item() for leaf in leaves] == flatten(init(policy))
    after = jax.eval_shape(lambda: scale.update(found_inf=False, amax=1.0))
    assert jax.tree.structure(after) == jax.tree.structure(scale)
    assert [(leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(after)] == [
        (a.dtype, False) for a in leaves
    ]


def test_update_is_traced_once_with_donation() -> None:
    traces = []

    def update(scale: PolicyScale, found: jax.Array) -> PolicyScale:
        traces.append(1)
        return scale.update(found)

    jitted, scale = (
        jax.jit(update, donate_argnums=0),
        PolicyScale.create(Probe(growth_interval=1)),
    )
    for found in (False, True, False):
        scale = jitted(scale, jnp.array(found))
    assert len(traces) == 1
    assert jitted(scale, jnp.array(False)).loss_scale == 2.0**17


def test_flag_truth_and_missing_observation() -> None:
    scale = PolicyScale.create(Deduplicated(init_scale=8.0))
    assert [
        float(scale.update(flag).loss_scale) for flag in (jnp.nan, 1.0, -1.0, 0.0)
    ] == [
        4,
        4,
        4,
        8,
    ]
    with pytest.raises(ValueError, match="amax=None: Headroom needs amax"):
        PolicyScale.create(Headroom()).update(found_inf=False)


def test_override_matches_core() -> None:
    policy = Probe(delay=1)
    state = PolicyScale.create(policy).override(3.0)
    assert [leaf.item() for leaf in jax.tree.leaves(state)] == flatten(
        override(policy, init(policy), 3.0)
    )
    assert (float(state.loss_scale), float(state.newest)) == (2.0**16, 3.0)
