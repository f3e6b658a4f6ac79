"""Triton as the kernels of `ampsim.torch` and `ampsim.probe` find it: absent, switched off, failing, interpreted."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ampsim import _triton
from ampsim.probe import counting
from ampsim.torch.gradients import kernels, unscale
from tests import warm
from tests.torch.helpers import INTERPRETED

CUDA = torch.device("cuda")
asks = pytest.mark.parametrize("ask", [kernels.available, counting.counter_of_many])


@pytest.fixture(autouse=True)
def forget_devices():
    _triton.runs.cache_clear()
    yield
    _triton.runs.cache_clear()


def test_without_triton_the_module_loads_and_offers_nothing(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    spec = importlib.util.spec_from_file_location("triton_that_is_not_there", _triton.__file__)
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    assert not alone.runs(kernels.norm_and_flag, CUDA)


@asks
def test_the_variable_switches_the_kernels_off(ask, monkeypatch) -> None:
    monkeypatch.setenv("AMPSIM_TRITON", "0")
    assert not ask(CUDA)
    assert not kernels.available(torch.device("cpu"))


@asks
@pytest.mark.peer("triton")
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a device that does not work")
def test_a_device_on_which_triton_fails_is_named_once(ask, recwarn) -> None:
    with pytest.warns(RuntimeWarning, match=r"Triton on cuda:.*set AMPSIM_TRITON=0"):
        assert not ask(CUDA)
    recwarn.clear()
    assert not ask(CUDA)
    assert not recwarn


@pytest.mark.peer("triton")
def test_a_first_use_in_a_capture_is_left_to_torch_and_not_remembered(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(_triton.NewAddressesError, match="expected a call before it"):
        _triton.runs(list, CUDA)
    monkeypatch.setattr(kernels, "takes", lambda _: _triton.runs(list, CUDA))
    assert unscale._by_kernels([SimpleNamespace(device=CUDA)], list) is None
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert _triton.runs(list, CUDA)


@pytest.mark.peer("triton")
@pytest.mark.skipif(INTERPRETED, reason="is in the interpreter")
def test_the_kernels_in_tritons_interpreter() -> None:
    """In a process of its own: the interpreter must be chosen before Triton is imported."""
    root = Path(__file__).parents[2]
    files = [f"tests/torch/test_{name}.py" for name in ("kernels", "adam_cases", "adam_kernels", "fused_step")]
    files.append("tests/probe/test_kernels.py")
    options = ["-q", "-m", "peer", "-p", "no:cacheprovider", "-W", "ignore:Module already imported"]
    command = [warm.python(), "-m", "pytest", *options, *files]
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=env, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout).group(1)) >= 20
