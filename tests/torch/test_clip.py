"""The one-pass clip equals torch's division, norm, and clip."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils import clip_grad_norm_

from ampsim.torch.gradients import collect
from ampsim.torch.gradients.clip import unscale_and_clip_

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def parameters(values, dtypes):
    params = []
    for row, dtype in zip(values, dtypes, strict=True):
        param = torch.nn.Parameter(torch.zeros(len(row), dtype=dtype))
        param.grad = torch.tensor(row, dtype=dtype)
        params.append(param)
    return params


rows = st.lists(st.floats(-100, 100, width=16), min_size=1, max_size=5)


@given(
    st.lists(st.tuples(rows, st.sampled_from(DTYPES)), min_size=1, max_size=4),
    st.integers(-3, 8),
    st.sampled_from([0.0, 0.5, 10.0, math.inf]),
    st.booleans(),
)
def test_clip_equals_torch(parts, exponent, max_norm, folds):
    values, dtypes = zip(*parts, strict=True)
    scale = torch.tensor(2.0**exponent)
    params = parameters(values, dtypes)
    twins = parameters(values, [torch.float32] * len(values))
    for twin, param in zip(twins, params, strict=True):
        twin.grad = param.grad.float() / scale
    expected = clip_grad_norm_(twins, max_norm)
    groups = collect.group(params, allow_fp16=True)
    norm, found, divisor = unscale_and_clip_(
        groups, scale, max_norm, folds=folds, may_be_below_one=True
    )
    torch.testing.assert_close(norm, expected)
    assert not any(found.values())
    assert (divisor is not None) == folds
    for param, twin in zip(params, twins, strict=True):
        clipped = param.grad.float() / divisor if folds else param.grad.float()
        tolerance = 4 * torch.finfo(param.dtype).eps
        torch.testing.assert_close(
            clipped, twin.grad, rtol=max(tolerance, 1e-5), atol=1e-4
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.inf, math.nan, "overflows when divided"])
@pytest.mark.parametrize("folds", [False, True])
def test_nonfinite_gradients_are_found(dtype, value, folds):
    scale, number = torch.tensor(1024.0), value
    if isinstance(value, str):
        scale, number = torch.tensor(2.0**-10), torch.finfo(dtype).max / 2
    params = parameters([[1.0, number]], [dtype])
    groups = collect.group(params, allow_fp16=True)
    result = unscale_and_clip_(
        groups, scale, math.inf, folds=folds, may_be_below_one=True
    )
    assert any(result.found_inf.values())


@pytest.mark.parametrize("folds", [False, True])
def test_large_squares_are_not_overflows(folds):
    params = parameters([[3e30, 4e30]], [torch.float32])
    groups = collect.group(params, allow_fp16=True)
    result = unscale_and_clip_(
        groups, torch.ones(()), 1.0, folds=folds, may_be_below_one=False
    )
    assert not any(result.found_inf.values())
    torch.testing.assert_close(result.norm, torch.tensor(5e30))
