"""The Triton kernels and `fused_step`: a truth or two of each, until a GPU has run them.

A kernel runs on a GPU, or on the CPU in Triton's interpreter:
``TRITON_INTERPRET=1 python -m pytest tests/torch/test_kernels.py``.
"""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ampsim.torch import GradScaler
from ampsim.torch.gradients import kernels
from tests.examples import examples
from tests.torch.helpers import DEVICE, INF, INTERPRETED, NAN, bits, drawn, kernel_on_device

pytestmark = [
    pytest.mark.usefixtures("small_tiles"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]
MAX = torch.finfo(torch.float32).max


# --------------------------------------------------------------------------------- the check of gradients


@kernel_on_device
@settings(
    max_examples=examples(ms=20),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 3, 31, 32, 33, 70]), min_size=1, max_size=3),
    magnitude=st.sampled_from([0.0, 2.0**-149, 1.0, 1e19, MAX]),
    bad=st.sampled_from([None, None, INF, -INF, NAN]),
    scale=st.sampled_from([2.0**-10, 1.0, 3.0, 2.0**16]),
)
@example(sizes=[33], magnitude=MAX, bad=None, scale=2.0**-10)  # finite, but not once divided
def test_norm_and_flag_match_float64(sizes, magnitude, bad, scale) -> None:
    grads = drawn(0, sizes, magnitude)
    if bad is not None and grads[-1].numel():
        grads[-1][-1] = bad
    values = np.concatenate([grad.cpu().double().numpy() for grad in grads]) / scale
    checked = kernels.norm_and_flag(grads, torch.tensor(scale, device=DEVICE))
    with np.errstate(all="ignore"):
        finite = np.isfinite(values.astype(np.float32)).all()
        norm = np.sqrt(np.square(values).sum())
    assert checked.found_inf.item() == float(not finite)
    if finite and norm < MAX * (1 - 1e-6):
        assert checked.norm.item() == pytest.approx(norm, rel=1e-6, abs=2.0**-149)


# ------------------------------------------------------------------------------------------- fused_step


@kernel_on_device
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_fused_run_is_torchs(kind, clip) -> None:
    start = drawn(1, [3, 0, 37], 1.0)
    scales, norms, results = [], [], []
    for ours in (True, False):
        params = [torch.nn.Parameter(values.clone()) for values in start]
        optimizer = kind(params, lr=0.1, weight_decay=0.1, fused=True)
        options = {"init_scale": 1024.0, "growth_interval": 2}
        scaler = torch.amp.GradScaler(DEVICE, **options)
        if ours:
            scaler = GradScaler(DEVICE, fused_step=True, **options)
        for number, bad in enumerate((None, INF, None, None, NAN)):
            scaler.scale(torch.ones((), device=DEVICE))
            for param, grad in zip(params, drawn(number, [3, 0, 37], scaler.get_scale()), strict=True):
                param.grad = grad
            if bad is not None:
                params[-1].grad[-1] = bad
            if clip is not None and number % 3 and ours:  # Adam does not see a clip of all steps
                norms.append(scaler.unscale_and_clip_(optimizer, clip).item())
            elif clip is not None and number % 3:
                scaler.unscale_(optimizer)
                norms.append(torch.nn.utils.clip_grad_norm_(params, clip).item())
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        results.append([param.detach() for param in params])
        assert optimizer.state[params[-1]]["step"] == 3
    assert scales[:5] == scales[5:] == [1024.0, 512.0, 512.0, 1024.0, 512.0]
    half = len(norms) // 2
    assert norms[:half] == pytest.approx(norms[half:], nan_ok=True)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"fused": True}])
def test_another_optimizer_is_left_to_torch(options) -> None:
    results = []
    for fused_step in (True, False):
        param = torch.nn.Parameter(torch.ones(3, device=DEVICE))
        optimizer = torch.optim.SGD([param], lr=0.1, **options)
        scaler = GradScaler(DEVICE, init_scale=4.0, fused_step=fused_step)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                scaler.scale(torch.ones((), device=DEVICE))
                param.grad = torch.full_like(param, 4.0)
                scaler.step(optimizer)
                scaler.update()
        assert ["SGD" in str(each.message) for each in caught] == [True] * fused_step  # told once
        results.append(bits(param))
    assert results[0] == results[1] == bits(torch.full((3,), 1.0).sub(0.1).sub(0.1))


# -------------------------------------------------------------------------------------- Triton itself


@pytest.mark.deep
@pytest.mark.peer("triton")
@pytest.mark.skipif(INTERPRETED, reason="runs in the interpreter already")
def test_kernels_in_tritons_interpreter() -> None:
    # In a process of its own: the interpreter must be chosen before Triton is imported.
    root = Path(__file__).parents[2]
    files = [path for path in root.glob("tests/*/test_kernels.py") if path.parent.name in ("torch", "probe")]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "peer", "-p", "no:cacheprovider", *map(str, files)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, cwd=root, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout
