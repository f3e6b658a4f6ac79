"""Watching waits for no device: a fake tensor on CUDA has no values, and whatever asks for one
raises.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ampsim.runs import watch


class Copies(TorchDispatchMode):
    """Refuses copies that wait."""

    def __init__(self):
        super().__init__()
        self.sent = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if (
            func is torch.ops.aten._to_copy.default
            and args[0].is_cuda
            and str(kwargs.get("device")) == "cpu"
        ):
            assert kwargs.get("non_blocking"), "a copy to the host that waits"
            self.sent += 1
        return func(*args, **kwargs)


class Event:
    def record(self, stream):
        pass

    def query(self):
        return False

    def synchronize(self):
        raise AssertionError("an event was waited for")


class Records(list):
    def close(self):
        pass


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    with FakeTensorMode(), Copies() as copies:
        yield copies


def test_steps_do_not_wait_for_device(cuda):
    written = Records()
    param = torch.nn.Parameter(torch.empty(4, 3, device="cuda"))
    optimizer = torch.optim.SGD([param], 0.1)
    run = watch({"w": param}, optimizer, to=written, sample_every=1, stall_steps=0)
    run._stall_steps = 1  # watch() itself would wait for the first checksums
    flag = torch.empty((), device="cuda")
    for number in range(3):
        param.grad = torch.empty(4, 3, device="cuda")
        run.log(loss=flag)
        run.gradients(number, optimizer, torch.empty((), device="cuda"))
        run.closing(number)
        run.closed(number, [(optimizer, [flag])])
    assert cuda.sent == 3 * len(
        ["norms", "loss_scale", "counts", "flag", "fingerprint", "loss"]
    )
    assert (written, len(run._writer._waiting)) == ([], 3)
    with pytest.raises(AssertionError, match="waited for"):
        run.flush()
    run._writer._waiting.clear()
    run.close()


def test_reading_device_value_is_detected(cuda):
    with pytest.raises(DataDependentOutputException):
        torch.empty((), device="cuda").item()
    with pytest.raises(AssertionError, match="that waits"):
        torch.empty((), device="cuda").cpu()
