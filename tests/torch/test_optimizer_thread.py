"""The optimizer's thread: order, failures, the end."""

import gc
import queue
import threading
import weakref
from concurrent.futures import CancelledError, Future

import pytest
import torch

from ampsim.torch import ClosedError, GradScaler, OptimizerThread
from ampsim.torch.roundpipe import shared_thread
from tests.torch.helpers import an_optimizer


def fails():
    raise KeyError("on purpose")


def test_work_runs_in_order(thread):
    seen = []
    for i in range(50):
        thread.launch(lambda i=i: seen.append((i, threading.get_ident())))
    thread.synchronize()
    assert [i for i, _ in seen] == [*range(50)]
    idents = {ident for _, ident in seen}
    assert len(idents) == 1
    assert threading.get_ident() not in idents
    assert thread.launch(divmod, 7, 2).result() == (3, 1)


def test_unretrieved_error_is_raised_once(thread):
    for call in (thread.synchronize, lambda: thread.launch(list)):
        done = threading.Event()
        thread.launch(fails).add_done_callback(lambda _, done=done: done.set())
        done.wait(60)
        with pytest.raises(RuntimeError, match="on purpose") as caught:
            call()
        assert type(caught.value.__cause__) is KeyError
        call()


def test_an_error_is_not_raised_twice(thread):
    with pytest.raises(KeyError):
        thread.launch(fails).result()
    assert isinstance(thread.launch(fails).exception(), KeyError)
    thread.synchronize()
    thread.launch(list).result()


def test_work_after_failure_fails(thread):
    release = threading.Event()
    seen = []
    thread.launch(release.wait)
    thread.launch(fails)
    behind = thread.launch(seen.append, 1)
    release.set()
    with pytest.raises(RuntimeError, match="on purpose"):
        thread.synchronize()
    assert type(behind.exception().__cause__) is KeyError
    thread.launch(seen.append, "later").result()
    assert seen == ["later"]


def test_cancelled_job_is_skipped(thread):
    release = threading.Event()
    thread.launch(release.wait)
    job = thread.launch(fails)
    assert job.cancel()
    release.set()
    assert thread.launch(divmod, 7, 2).result() == (3, 1)
    with pytest.raises(CancelledError):
        job.result()
    thread.synchronize()


def test_finished_job_releases_references(thread):
    tensor = torch.ones(3)
    alive = weakref.ref(tensor)
    thread.launch(tensor.add_, 1).result()
    thread.synchronize()
    del tensor
    gc.collect()
    assert alive() is None


def test_synchronize_on_the_thread_raises(thread):
    assert isinstance(thread.launch(thread.synchronize).exception(), RuntimeError)


def test_close_finishes_launched_work():
    thread, seen = OptimizerThread("named"), []
    for i in range(20):
        thread.launch(seen.append, i)
    thread.close()
    thread.close()
    assert seen == [*range(20)]
    with pytest.raises(ClosedError, match="named"):
        thread.launch(list)


def test_close_raises_a_failure_once():
    thread = OptimizerThread()
    thread.launch(fails)
    with pytest.raises(RuntimeError, match="on purpose"):
        thread.close()
    thread.close()


def test_close_on_own_thread_returns():
    thread = OptimizerThread()
    thread.launch(thread.close).result()
    thread.close()


def test_closed_shared_thread_is_replaced():
    first = shared_thread()
    assert shared_thread() is first
    first.close()
    second = shared_thread()
    assert second is not first
    assert second.launch(divmod, 7, 2).result() == (3, 1)


def test_any_ordered_executor_works():
    work = queue.SimpleQueue()  # its put() returns no Future

    def run():
        for job in iter(work.get, None):
            job()

    worker = threading.Thread(target=run)
    worker.start()
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1, launch=work.put)
    param, optimizer = an_optimizer()
    scaler.scale(param.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale(up_to_date=True) == 8.0
    work.put(None)
    worker.join(60)


def test_a_dropped_update_closes_the_scaler():
    failed = Future()
    failed.set_exception(OSError("no room"))
    scaler = GradScaler("cpu", launch=lambda run: failed)
    scaler.scale(torch.tensor(1.0))
    with pytest.raises(OSError, match="no room"):
        scaler.update(is_async=False)
    scaler.update()
    with pytest.raises(ClosedError, match="no room"):
        scaler.scale(torch.tensor(1.0))
    scaler.close()
    with pytest.raises(ClosedError, match="no room"):
        scaler.scale(torch.tensor(1.0))
