"""What only a GPU can show of JAX. `make gpu` runs the tests marked gpu; on the CPU the same tests
run dry.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ampsim import Rule
from ampsim.jax import LossScale, all_finite
from tests.jax.helpers import reference

torch = pytest.importorskip("torch")

gpu = pytest.mark.gpu
on_both = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=gpu)], indirect=True
)
HISTORY = [i % 7 == 3 for i in range(200)]


@pytest.fixture
def device(request):
    try:
        found = jax.devices(request.param)
    except RuntimeError as error:
        pytest.skip(str(error))
    with jax.default_device(found[0]):
        yield request.param


def at(scale: float) -> LossScale:
    return LossScale.create(Rule(init_scale=scale))


@on_both
def test_scan_matches_state_machine(device) -> None:
    rule = Rule(1700.0, 3.0, 0.3, 2, delay=1)

    def step(scaler, found):
        scaler = scaler.update(found)
        return scaler, scaler.loss_scale

    last, scales = jax.jit(
        lambda found: jax.lax.scan(step, LossScale.create(rule), found)
    )(jnp.array(HISTORY))
    states = reference(rule, HISTORY)
    assert np.asarray(scales).tolist() == [state.scale for state in states]
    assert last.state == states[-1]


unscale_compiled = jax.jit(LossScale.unscale)


@on_both
@pytest.mark.parametrize("scale", [2.0**-10, 2.0**16])
def test_unscaled_gradients_match_torch_bits(device, scale) -> None:
    exponents = np.arange(
        -100 if device == "cpu" else -149, 110
    )  # a CPU takes subnormals for 0
    grads = (
        1.2345678
        * 2.0 ** exponents.repeat(3)
        * np.tile([1.0, -1.1, 1.7], len(exponents))
    ).astype(np.float32)
    inverse = torch.tensor(scale, device=device).double().reciprocal().float()
    expected = (torch.from_numpy(grads).to(device) * inverse).cpu().numpy()
    for unscale in (LossScale.unscale, unscale_compiled)[
        device == "cpu" :
    ]:  # eagerly on a CPU: test_loss_scale
        got = np.asarray(unscale(at(scale), jnp.array(grads)))
        assert got.view(np.uint32).tolist() == expected.view(np.uint32).tolist()


@gpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_gpu_keeps_subnormals(device) -> None:
    assert (
        float(jax.jit(LossScale.unscale)(at(2.0), jnp.float32(2.0**-126))) == 2.0**-127
    )
    assert float(jax.jit(LossScale.unscale)(at(2.0**127), jnp.float32(2.0**126))) == 0.5
    assert float(jax.jit(LossScale.scale)(at(2.0**-127), jnp.float32(2.0))) == 2.0**-126


@on_both
def test_single_nonfinite_element_is_found(device) -> None:
    size = 1 << (27 if device == "cuda" else 12)
    grads = [jnp.ones(5), jnp.ones(size, jnp.bfloat16)]
    assert all_finite(grads)
    for bad in (jnp.inf, jnp.nan):
        assert not all_finite([grads[0], grads[1].at[size - 3].set(bad)])
