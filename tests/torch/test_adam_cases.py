"""A step by Adam's two Triton kernels, in Triton's interpreter, held to the bit against torch's: 10,000 cases if deep.

Against the one for CUDA, by its arithmetic in numpy; `test_fused_step` holds a run against the one for the CPU.
"""

import ctypes
import ctypes.util
import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from ampsim.torch.gradients import adam, kernels
from tests.examples import examples
from tests.torch.helpers import FUSES, INF, INTERPRETED, NAN, bits, drawn

F32 = np.float32
CASES = 10_000 if os.environ.get("AMPSIM_DEEP") == "1" else examples(ms=30)

_fmaf = ctypes.CDLL(ctypes.util.find_library("m")).fmaf
_fmaf.restype, _fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
fma = np.vectorize(lambda a, b, c: F32(_fmaf(a, b, c)), otypes=[F32])
if not FUSES:

    def fma(a, b, c):
        return a * b + c


def of_cuda(g, p, m, v, step, n):
    """Return what `adam_math` of torch's fused_adam_utils.cuh makes of float32 arrays, as nvcc contracts it."""
    lr, beta1, beta2, eps, decay = map(F32, n[:5])
    g = -g if n.maximize else g
    if decay != 0 and n.decoupled:
        p = fma(-(lr * decay), p, p)
    elif decay != 0:
        g = fma(p, decay, g)
    m = fma(beta1, m, fma(-beta1, g, g))
    v = fma(beta2, v, fma(-beta2, g * g, g * g))
    power1, power2 = (F32(np.float64(beta) ** step) for beta in (beta1, beta2))
    denominator = np.sqrt(v) / np.sqrt(F32(1) - power2) + eps
    return p - lr / (F32(1) - power1) * m / denominator, m, v


magnitudes = st.sampled_from([0.0, 2.0**-149, 2.0**-126, 1e-20, 1e-5, 1.0, 1.0, 300.0, 1e15, 1e19, 1e37, 3e38])
betas = st.sampled_from([(0.9, 0.999), (0.9, 0.95), (0.0, 0.5), (0.3, 0.9), (0.875, 1 - 2**-10)])
USUAL = adam.Hyperparameters(1e-3, 0.9, 0.999, 1e-8, 0.01, decoupled=True, maximize=False)
numbers = st.builds(
    lambda lr, betas, *others: adam.Hyperparameters(lr, *betas, *others), st.sampled_from([1e-3, 0.1, 1.0]), betas,
    st.sampled_from([1e-8, 1e-8, 0.0, 1e-3]), st.sampled_from([0.0, 0.01, 0.5]), st.booleans(), st.booleans(),
)  # fmt: skip


@pytest.mark.peer("triton")
@pytest.mark.skipif(not INTERPRETED, reason="on a GPU test_adam_kernels compares with torch's own kernel")
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")  # numpy's, of inf and NaN
@settings(max_examples=CASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6), sizes=st.sampled_from([(1,), (15, 16), (17,), (35,), (3, 0, 20)]), n=numbers,
    dtype=st.sampled_from(list(kernels.DTYPES)), around=st.tuples(*[magnitudes] * 4), offset=st.sampled_from([0, 0, 1]),
    scale=st.sampled_from([2.0**-10, F32(0.3).item(), 1.0, 3.0, 1024.0, 65536.0]),
    clip=st.sampled_from([None, None, 0.0, 0.5, 1e6]), bad=st.sampled_from([None] * 12 + [INF, -INF, NAN]),
    count=st.sampled_from([0, 1, 7, 1000, 10**6]),
)  # fmt: skip
@example(0, (17,), USUAL, torch.float32, (3e38, 1.0, 0.0, 0.0), 0, 2.0**-10, 1.0, None, 0)  # not finite once unscaled
def test_a_step_is_torchs(seed, sizes, n, dtype, around, offset, scale, clip, bad, count) -> None:
    (grads, *ours), margins = drawn_within(seed, sizes, [around[0] * scale, *around[1:]], dtype, offset)
    if bad is not None:
        grads[-1][-1] = bad
    before = [[tensor.numpy().copy() for tensor in tensors] for tensors in ours]
    steps = [torch.tensor(float(count)) for _ in sizes]
    at, kept = torch.tensor(scale), bits(*(each.float() for each in grads + margins))

    checked = kernels.check(grads, at, clip)
    adam.step(adam.Tensors(grads, *ours, steps), checked.found_inf, checked.divisor, n)

    assert bits(*(each.float() for each in grads + margins)) == kept
    skipped = not all((grad.float() / at).isfinite().all() for grad in grads)
    assert checked.found_inf == skipped
    assert steps == [count + (not skipped)] * len(sizes)
    event("skipped" if skipped else "stepped" if checked.divisor == at else "clipped")
    if skipped:
        assert [bits(*tensors) for tensors in ours] == [[each.tobytes() for each in arrays] for arrays in before]
        return
    with np.errstate(all="ignore"):
        for i, grad in enumerate(grads):
            arguments = (grad.float() / checked.divisor).numpy(), *(arrays[i] for arrays in before), count + 1, n
            for mine, cudas in zip(ours, of_cuda(*arguments), strict=True):
                np.testing.assert_array_equal(mine[i].numpy(), cudas)


def drawn_within(seed, sizes, magnitudes, dtype, offset):
    """Return gradients, parameters and both moments, and what lies in memory before and behind them."""
    lists, margins = [], []
    for i, magnitude in enumerate(magnitudes):
        whole = drawn(seed + i, [size + 5 for size in sizes], magnitude, torch.float32 if i else dtype)
        parts = [each.split([offset, size, 5 - offset]) for each, size in zip(whole, sizes, strict=True)]
        lists.append([inside for _, inside, _ in parts])
        margins += [margin for before, _, behind in parts for margin in (before, behind)]
    for square in lists[3]:
        square.abs_()
    if dtype is torch.bfloat16:  # whose subnormals the interpreter takes for others
        for grad in lists[0]:
            grad[grad.abs() < torch.finfo(dtype).tiny] = 0.0
    return lists, margins
