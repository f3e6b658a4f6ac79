"""The sum of squares is right for any gradients, and one bad element skips the step."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from ampsim.torch import GradScaler
from ampsim.torch.gradients import norms
from tests.examples import examples

LARGE = norms.SMALL + 1
SIZES = [(0,), (1,), (7, 3), (norms.SMALL,), (LARGE,), (3, LARGE), (norms.PART + 1,)]


def exact(grads):
    return math.fsum(float(g.double().square().sum()) for g in grads)


@settings(max_examples=examples(ms=8))
@given(
    sizes=st.lists(st.sampled_from(SIZES), max_size=6),
    double=st.booleans(),
    seed=st.integers(0, 99),
)
@example(sizes=[(1,)] * 200, double=False, seed=0)  # more than one buffer
def test_sum_of_squares_matches_exact_sum(sizes, double, seed):
    torch.manual_seed(seed)
    grads = [
        torch.randn(size, dtype=torch.float64 if double else torch.float32)
        for size in sizes
    ]
    grads = [g.t() if g.dim() == 2 and seed % 2 else g for g in grads]
    assert norms.sum_of_squares(grads) == pytest.approx(exact(grads), rel=4e-6)


@settings(max_examples=examples(ms=5))
@given(
    size=st.sampled_from([1, 3, LARGE, norms.SMALL + 6, norms.PART + 5]),
    place=st.floats(0, 1, exclude_max=True),
    bad=st.sampled_from([math.inf, -math.inf, math.nan]),
    scale=st.sampled_from([0.5, 4.0]),
    call=st.sampled_from(["unscale_", "step", "unscale_and_clip_"]),
    fused=st.booleans(),
)
@example(norms.SMALL + 6, 0.99999, math.inf, 4.0, "step", True)  # behind the rows
def test_one_nonfinite_element_skips_step(size, place, bad, scale, call, fused):
    # A large gradient is summed in parts: wherever the element lies.
    param, small = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.zeros(5))
    optimizer, scaler = (
        torch.optim.SGD([small, param], lr=1.0, fused=fused),
        GradScaler("cpu", init_scale=scale),
    )
    scaler.scale(torch.ones(()))
    param.grad, small.grad = torch.ones(size), torch.ones(5)
    param.grad[int(place * size)] = bad
    if call != "step":
        getattr(scaler, call)(optimizer, *[1.0] * (call == "unscale_and_clip_"))
    scaler.step(optimizer)
    assert scaler.last_step.skipped
    assert not param.any()
    assert not small.any()
    param.grad, small.grad = torch.ones(size), torch.ones(5)
    scaler.update()
    scaler.step(optimizer)
    assert param.all()
