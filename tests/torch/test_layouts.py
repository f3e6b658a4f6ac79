"""Gradients however they lie in memory: a fused kernel on the CPU walks from the first address,
whatever strides.
"""

import mmap
import tempfile

import pytest
import torch

from ampsim.torch import GradScaler
from tests.torch.helpers import run_script

SCALE = 1024.0
NUMBERS = torch.arange(64.0) * SCALE
LAYOUTS = {
    "strided": lambda: NUMBERS[:48].reshape(4, 12).clone()[:, ::2],
    "transposed": lambda: NUMBERS[:24].reshape(6, 4).clone().t(),
    "zero elements": lambda: NUMBERS[:1].clone().expand(0, 6),
    "storage offset": lambda: NUMBERS[:25].clone()[1:].reshape(4, 6),
    "strided with an offset": lambda: NUMBERS[:49].clone()[1:].reshape(4, 12)[:, 1::2],
    "overlapping windows": lambda: NUMBERS[:9].clone().as_strided((4, 6), (1, 1)),
}
OVERLAPS = "unsupported operation: more than one element of the written-to tensor"  # torch's words
KINDS = pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
CLIPS = pytest.mark.parametrize("how", ["step", "unscale_and_clip_"])


def stepped(kind, grad, param, how="step", **options):
    """Two steps with a gradient; return the parameters."""
    param = torch.nn.Parameter(param.clone())
    optimizer = kind([param], lr=0.5, **options)
    scaler = GradScaler("cpu", init_scale=SCALE)
    for _ in range(2):
        scaler.scale(torch.ones(()))
        param.grad = grad()
        if how != "step":
            scaler.unscale_and_clip_(optimizer, 2.0)
        scaler.step(optimizer)
        scaler.update()
    return param.detach()


@CLIPS
@KINDS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fused_step_accepts_any_layout(layout, kind, how):
    grad = LAYOUTS[layout]
    zeros = torch.zeros(grad().shape)
    for param in (zeros, zeros.t().contiguous().t()):
        fused = stepped(kind, grad, param, how, fused=True)
        plain = stepped(kind, lambda: grad().clone(), param, how)
        torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-7)


def guarded(grad):
    """Return a copy, laid out alike, that ends where its file does: to touch what lies behind ends
    the process.
    """
    steps = (
        (size - 1) * stride
        for size, stride in zip(grad.shape, grad.stride(), strict=True)
        if size
    )
    last = grad.storage_offset() + sum(steps)
    with tempfile.TemporaryFile() as file:
        file.truncate(2 * mmap.PAGESIZE)
        memory = mmap.mmap(file.fileno(), 2 * mmap.PAGESIZE)
        file.truncate(mmap.PAGESIZE)
    offset = mmap.PAGESIZE - 4 * (last + 1)
    flat = torch.frombuffer(memory, dtype=torch.float32, count=last + 1, offset=offset)
    flat.copy_(torch.empty(0).set_(grad.untyped_storage())[: last + 1])
    return flat.as_strided(grad.shape, grad.stride(), grad.storage_offset())


def test_expanded_gradient_raises_before_writing():
    script = f"""
import itertools, torch
from ampsim.torch import GradScaler
from tests.torch.test_layouts import LAYOUTS, guarded, stepped
shapes = ((5,), (1000,), (100_000,), (4, 6))
earlier = ("", "unscale_and_clip_", "unscale_")
kinds = (torch.optim.SGD, torch.optim.AdamW)
for shape, early, kind in itertools.product(shapes, earlier, kinds):
    param = torch.nn.Parameter(torch.ones(shape))
    optimizer = kind([param], lr=0.5, fused=True)
    scaler = GradScaler("cpu", init_scale={SCALE})
    scaler.scale(torch.ones(()))
    param.grad = torch.ones(shape)
    if early == "unscale_":
        scaler.unscale_(optimizer)  # and then the gradient is replaced
    param.grad = guarded(torch.full((), {SCALE}).expand(shape))
    try:
        if early == "unscale_and_clip_":
            scaler.unscale_and_clip_(optimizer, 1.0)
        scaler.step(optimizer)
    except RuntimeError as error:
        assert str(error).startswith({OVERLAPS!r}), error
    else:
        raise AssertionError((shape, early, kind))
    assert (param == 1).all() and not optimizer.state and (param.grad == {SCALE}).all()

for layout, early, kind in itertools.product(LAYOUTS.values(), earlier[:2], kinds):
    stepped(kind, lambda: guarded(layout()), torch.zeros(layout().shape), early or "step", fused=True)
"""
    run_script(script)


def test_parameter_with_gaps_raises_with_fix():
    param = torch.nn.Parameter(torch.zeros(4, 12)[:, ::2])
    optimizer = torch.optim.SGD([param], lr=1.0, fused=True)
    scaler = GradScaler("cpu", init_scale=SCALE)
    scaler.scale(torch.ones(()))
    param.grad = torch.ones(4, 6)
    with pytest.raises(
        RuntimeError, match=r"strides \(12, 2\).*expected one without gaps.*fused=False"
    ):
        scaler.step(optimizer)
    assert not param.any()
