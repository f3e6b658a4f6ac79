"""What several test files of the scaler and of the kernels share."""

import math
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import ampsim

INF, NAN = math.inf, math.nan


def an_optimizer(*values, kind=torch.optim.SGD, dtype=torch.float32, **options):
    """Return a parameter and an optimizer of it."""
    param = torch.nn.Parameter(torch.tensor(values or (1.0, 2.0), dtype=dtype))
    return param, kind([param], **{"lr": 0.5, **options})


def bits(*tensors):
    """Return every bit of some tensors, NaN's included."""
    return [tensor.detach().cpu().numpy().tobytes() for tensor in tensors]


def told(call):
    """Return what a call returned, or the type and text of what it raised."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def run_script(script):
    """Run a script in a process of its own, where warnings are errors; it must end well."""
    path = str(Path(ampsim.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done


@contextmanager
def no_waits(device):
    """Make whatever waits for a CUDA device raise."""
    if device == "cpu":
        yield
        return
    try:
        torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --------------------------------------------------------------------------------------------- Triton's kernels

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # see test_kernels
DEVICE = "cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda"


def kernel_on_device(test):
    """Mark a test that runs kernels: in Triton's interpreter, or on a device."""
    return (pytest.mark.peer("triton") if INTERPRETED else pytest.mark.gpu)(test)


def compiles(test):
    """Mark a test that compiles kernels for a device that need not be there."""
    interpreted = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
    return pytest.mark.peer("triton")(interpreted(test))


def compiled(kernel, signature, constants, capability, options):
    """Return what a kernel becomes for GPUs of a compute capability, by stage; the cache is an empty one."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(kernel, signature, constants)
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, TRITON_CACHE_DIR=cache):
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return made.asm


def drawn(seed, sizes, magnitude, dtype=torch.float32):
    """Return normally distributed tensors of these sizes on the kernels' device, without inf."""
    random, top = np.random.default_rng(seed), torch.finfo(dtype).max
    made = (torch.from_numpy(random.standard_normal(size) * magnitude).clamp(-top, top).to(dtype) for size in sizes)
    return [values.nan_to_num(posinf=top, neginf=-top).to(DEVICE) for values in made]
