"""The sum of squares: right for any gradients, and a hook's sum is used only while it is still true."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from ampsim.torch import GradScaler, norm_hooks
from ampsim.torch.gradients import norms
from tests.examples import examples

LARGE = norms.SMALL + 1
SIZES = [(0,), (1,), (7, 3), (norms.SMALL,), (LARGE,), (3, LARGE), (norms.PART + 1,)]


def exact(grads):
    return math.fsum(float(g.double().square().sum()) for g in grads)


@settings(max_examples=examples(ms=8))
@given(sizes=st.lists(st.sampled_from(SIZES), max_size=6), double=st.booleans(), seed=st.integers(0, 99))
@example(sizes=[(1,)] * 200, double=False, seed=0)  # more than one buffer
def test_it_is_the_sum_of_squares(sizes, double, seed):
    torch.manual_seed(seed)
    grads = [torch.randn(size, dtype=torch.float64 if double else torch.float32) for size in sizes]
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
def test_one_bad_element_skips_the_step(size, place, bad, scale, call, fused):
    # A large gradient is summed in parts: wherever the element lies.
    param, small = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.zeros(5))
    optimizer, scaler = torch.optim.SGD([small, param], lr=1.0, fused=fused), GradScaler("cpu", init_scale=scale)
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


class Model:
    """Two large parameters and a small one, with gradients of real backward passes."""

    def __init__(self):
        torch.manual_seed(0)
        self.params = [nn.Parameter(torch.randn(size)) for size in ((LARGE,), (5,), (3, LARGE))]
        self.optimizer = torch.optim.AdamW(self.params, lr=0.1, fused=True)

    def backward(self, factor=1.0):
        factors = [torch.randn_like(p) * factor for p in self.params]
        sum((p * f).sum() for p, f in zip(self.params, factors, strict=True)).backward()

    @property
    def grads(self):
        return [p.grad for p in self.params]


CHANGES = {
    "written in place": lambda model: model.params[0].grad[3].fill_(math.inf),
    "multiplied": lambda model: torch._foreach_mul_(model.grads, 0.5),
    "replaced": lambda model: setattr(model.params[2], "grad", model.params[2].grad * 2),
    "zeroed": lambda model: model.optimizer.zero_grad(set_to_none=False),
    "accumulated": Model.backward,
    "made anew": lambda model: (model.optimizer.zero_grad(), model.backward(math.inf)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_gradient_that_changed_after_its_hook_is_read_again(change):
    model = Model()
    with norm_hooks(model.optimizer):
        model.backward()
        change(model)
        found, wanted = norms.sum_of_squares(model.grads), exact(model.grads)
    assert found == pytest.approx(wanted, rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("sparse", [False, True])
def test_hooks_take_gradients_of_any_kind(dtype, sparse):
    table = nn.Embedding(LARGE, 2, sparse=sparse, _weight=torch.ones(LARGE, 2, dtype=dtype))
    optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
    scaler = GradScaler("cpu", init_scale=4.0, allow_fp16=True)
    with norm_hooks(optimizer):
        scaler.scale(table(torch.tensor([1, 1, 3])).sum()).backward()
        scaler.step(optimizer)
    assert table.weight[:4, 0].tolist() == [1.0, 0.0, 1.0, 0.5]


@settings(max_examples=examples(ms=20))
@given(
    plan=st.lists(st.sampled_from(["clean", "overflow", "twice", "edited"]), min_size=1, max_size=8), clip=st.booleans()
)
def test_with_hooks_training_is_what_it_is_without(plan, clip):
    finals = []
    for hooked in (False, True):
        model, scaler = Model(), GradScaler("cpu", init_scale=8.0, growth_interval=2)
        hooks = norm_hooks(model.optimizer) if hooked else None
        for kind in plan:
            model.optimizer.zero_grad()
            for _ in range(2 if kind == "twice" else 1):
                model.backward(scaler.scale(torch.tensor(1.0)) * (math.inf if kind == "overflow" else 1.0))
            if kind == "edited":
                model.params[0].grad[0] = math.nan
            if clip:
                scaler.unscale_and_clip_(model.optimizer, 0.01)
            scaler.step(model.optimizer)
            scaler.update()
        finals.append((scaler.get_scale(), [p.detach() for p in model.params]))
        if hooks:
            hooks.close()
    (scale, params), (hooked_scale, hooked_params) = finals
    assert scale == hooked_scale
    torch.testing.assert_close(hooked_params, params, rtol=1e-5, atol=1e-7)
    assert all(np.isfinite(p.numpy()).all() for p in hooked_params)
