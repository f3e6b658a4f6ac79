"""What several test files of the scaler share."""

import math
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

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
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
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
