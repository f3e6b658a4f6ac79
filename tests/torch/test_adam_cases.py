"""10,000 steps by Adam's two Triton kernels, in Triton's interpreter, held against torch's fused step for the CPU."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from ampsim.torch.gradients import adam, kernels
from tests.torch.helpers import INF, INTERPRETED, NAN, bits, drawn

CASES = 10_000
SUBNORMAL, MAX = 2.0**-126, torch.finfo(torch.float32).max
SIZES = st.sampled_from([(3,), (17,), (35,), (3, 0, 20)])  # one program, two, a whole tile and a tail, several tensors

numbers = st.builds(
    adam.Hyperparameters, st.sampled_from([1e-3, 0.1]), st.sampled_from([0.0, 0.875, 0.9]),
    st.sampled_from([0.5, 0.95, 0.999]), st.sampled_from([1e-8, 1e-3]), st.sampled_from([0.0, 0.01, 0.5]),
    st.booleans(), st.booleans(),
)  # fmt: skip
# of gradients once unscaled, and what to clip to: torch's squares of the largest leave float32 unless they are clipped
magnitudes = st.sampled_from(
    [(m, c) for m in (0.0, 2.0**-140, 1e-20, 1e-4, 1.0, 300.0, 1e15) for c in (None, None, 0.0, 0.5, 1e6)]
    + [(1e30, 0.5), (1e37, 0.5), (1e37, 1e6)]
)


@pytest.mark.deep
@pytest.mark.peer("triton")
@pytest.mark.skipif(not INTERPRETED, reason="on a GPU test_adam_kernels compares every bit")
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")  # numpy's, of inf and NaN
@settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10**6), sizes=SIZES, dtype=st.sampled_from(list(kernels.DTYPES)), n=numbers,
    magnitude=magnitudes, scale=st.sampled_from([1.0, 3.0, 1024.0]),
    bad=st.sampled_from([None] * 12 + [INF, -INF, NAN]),
    count=st.sampled_from([0, 1, 7, 1000, 10**6]), moments=st.sampled_from([0.0, 1e-20, 1e-3, 1.0]),
)  # fmt: skip
def test_a_step_is_torchs(seed, sizes, dtype, n, magnitude, scale, bad, count, moments) -> None:
    size, clip = magnitude
    grads, params, exp_avgs, roots = (
        drawn(seed + i, sizes, by, dtype if i == 0 else torch.float32)
        for i, by in enumerate([size * scale, 1.0, moments, moments])
    )
    for grad in grads:
        if dtype is torch.bfloat16:  # whose subnormals the interpreter takes for others
            grad[grad.abs() < SUBNORMAL] = 0.0
    if bad is not None:
        grads[-1][-1] = bad
    ours = [params, exp_avgs, [root.square() for root in roots]]
    before = [[tensor.clone() for tensor in tensors] for tensors in ours]
    theirs = [[tensor.clone() for tensor in tensors] for tensors in ours]
    steps = [[torch.tensor(float(count)) for _ in sizes] for _ in "ab"]

    checked = adam.check(grads, torch.tensor(scale), clip)
    adam.step(adam.Tensors(grads, *ours, steps[0]), checked.found_inf, checked.divisor, n)

    skipped = not all(np.isfinite((grad.float() / scale).numpy()).all() for grad in grads)
    assert checked.found_inf.item() == skipped
    if skipped:
        event("skipped")
        assert [bits(*tensors) for tensors in ours] == [bits(*tensors) for tensors in before]
        assert [step.item() for step in steps[0]] == [count] * len(sizes)
        return
    event("clipped" if clip is not None and checked.norm > clip else "stepped")
    divisor = expected_divisor(grads, scale, clip, checked)
    unscaled = [grad.float() / divisor for grad in grads]
    torch._foreach_add_(steps[1], 1)
    (torch._fused_adamw_ if n.decoupled else torch._fused_adam_)(
        theirs[0], [grad.clone() for grad in unscaled], theirs[1], theirs[2], [], steps[1], lr=n.lr, beta1=n.beta1,
        beta2=n.beta2, weight_decay=n.weight_decay, eps=n.eps, amsgrad=False, maximize=n.maximize,
    )  # fmt: skip
    assert steps[0] == steps[1]
    for i, grad in enumerate(unscaled):
        assert_close(*([tensors[i] for tensors in state] for state in (ours, theirs, before)), grad, count + 1, n)


def expected_divisor(grads, scale, clip, checked) -> torch.Tensor:
    """Return the divisor, which must be that of the norm in float64."""
    exact = np.sqrt(sum(np.square(grad.double().numpy()).sum() for grad in grads)) / scale
    assert checked.norm.item() == pytest.approx(exact, rel=1e-6, abs=2.0**-149)
    if clip is not None and exact + 1e-6 > clip:
        wanted = scale / (clip / (exact + 1e-6)) if clip else INF
        assert checked.divisor.item() == pytest.approx(wanted if wanted < MAX else INF, rel=2e-6)
    else:
        assert checked.divisor.item() == scale
    return checked.divisor


def assert_close(ours, theirs, before, grad, step, n) -> None:
    """Assert that rounding alone differs.

    torch's kernel for the CPU has its powers and betas in float64; where Triton's interpreter does not fuse, 1 - beta2
    costs g * g up to 2^-24 / (1 - beta2) = 6e-5 of itself.
    """
    (p, m, v), (_, m_torch, v_torch) = ours, theirs
    if n.weight_decay and not n.decoupled:
        grad = grad.abs() + n.weight_decay * before[0].abs()
    rounding = 1e-6 * (grad.abs() + before[1].abs()) + 2.0**-146  # of a sum of numbers with two signs
    assert ((m - m_torch).abs() <= 1e-5 * m_torch.abs() + rounding).all()
    assert ((v - v_torch).abs() <= 7e-5 * v_torch.abs() + 2.0**-146).all()
    root = v_torch.double().sqrt() / (1 - n.beta2**step) ** 0.5 + n.eps
    size = n.lr / (1 - n.beta1**step) / root
    allowed = 2e-6 * before[0].abs() + size * (1e-4 * m_torch.abs() + rounding)
    assert ((p - theirs[0]).double().abs() <= allowed).all()
