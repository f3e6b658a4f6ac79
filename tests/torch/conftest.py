"""One torch thread, and an optimizer's thread as a fixture."""

import os

import pytest

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
torch.set_num_threads(1)


@pytest.fixture
def thread():
    from ampsim.torch import OptimizerThread  # behind the skip

    thread = OptimizerThread()
    yield thread
    thread.close()


if os.environ.get("TRITON_INTERPRET") == "1":
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def patch_index_too(tensor, scope):
        """Triton 3.6 takes int() of an array with one element, which numpy 2.5 refuses."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_index_too


@pytest.fixture
def small_tiles(monkeypatch):
    """In Triton's interpreter a program takes 2 ms: tiles of 32 elements, on the CPU."""
    from ampsim.torch.gradients import adam, kernels
    from ampsim.torch.step import fused_step
    from tests.torch.helpers import DEVICE, INTERPRETED

    if INTERPRETED:
        monkeypatch.setattr(kernels, "BLOCK", 32)
        monkeypatch.setattr(adam, "PART", 16)
        monkeypatch.setattr(adam, "available", lambda device: device.type == DEVICE)
        monkeypatch.setattr(fused_step, "KERNEL_DEVICES", {DEVICE})
    kernels._tiles.cache_clear()
    yield
    kernels._tiles.cache_clear()
