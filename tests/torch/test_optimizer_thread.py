"""The optimizer's thread: order, back-pressure, failures, the end."""

import gc
import threading
import weakref

import pytest
import torch

from ampsim.torch.async_state import ClosedError
from ampsim.torch.optimizer_thread import OptimizerThread


@pytest.fixture
def thread():
    thread = OptimizerThread(device="cpu")
    yield thread
    thread.close()


@pytest.fixture
def failed():
    """A thread with a failed function and one behind it, and the second one's job."""
    thread, release = OptimizerThread(device="cpu"), threading.Event()
    thread.launch(release.wait)
    thread.launch(open, "no such file")
    behind = thread.launch(list)
    release.set()
    return thread, behind


def test_work_runs_in_order(thread):
    seen = []
    for number in range(50):
        thread.launch(
            lambda number=number: seen.append((number, threading.get_ident()))
        )
    thread.synchronize()
    assert [number for number, _ in seen] == [*range(50)]
    idents = {ident for _, ident in seen}
    assert len(idents) == 1
    assert threading.get_ident() not in idents
    assert thread.launch(divmod, 7, 2).result() == (3, 1)


def test_failure_ends_thread(failed):
    thread, behind = failed
    for call in (thread.synchronize, thread.synchronize, behind.result, thread.close):
        with pytest.raises(RuntimeError, match="FileNotFoundError") as caught:
            call()
        assert isinstance(caught.value.__cause__, FileNotFoundError)
    with pytest.raises(ClosedError, match="FileNotFoundError"):
        thread.launch(list)


def test_finished_job_releases_references(thread):
    tensor = torch.ones(3)
    alive = weakref.ref(tensor)
    thread.launch(tensor.add_, 1)
    thread.synchronize()
    del tensor
    gc.collect()
    assert alive() is None


def test_synchronize_on_own_thread_raises(thread):
    errors = []

    def call():
        with pytest.raises(RuntimeError, match="would wait for itself"):
            thread.synchronize()
        errors.append(True)

    thread.launch(call).result()
    assert errors


def test_close_finishes_launched_work():
    thread, seen = OptimizerThread(device="cpu"), []
    for number in range(20):
        thread.launch(seen.append, number)
    thread.close()
    thread.close()
    assert seen == [*range(20)]
    with pytest.raises(ClosedError, match="it was closed"):
        thread.launch(list)


def test_close_is_bounded():
    thread, release = OptimizerThread(device="cpu"), threading.Event()
    thread.launch(release.wait)
    with pytest.raises(
        TimeoutError, match="a function on the optimizer thread still runs"
    ):
        thread.close(0.01)
    release.set()
    thread.close()


def test_close_on_own_thread_returns():
    thread = OptimizerThread(device="cpu")
    thread.launch(thread.close).result()
    thread.close()
