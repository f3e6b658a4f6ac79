"""The optimizer's thread: order, failures, the end."""

import gc
import threading
import weakref
from concurrent.futures import CancelledError, Future

import pytest
import torch

from ampsim.torch import ClosedError, GradScaler, OptimizerThread
from ampsim.torch.threads import optimizer_thread
from ampsim.torch.threads.launcher import Launcher
from ampsim.torch.threads.optimizer_thread import shared_thread


def fails():
    raise KeyError("on purpose")


def test_work_runs_in_order_on_one_thread(thread):
    seen = []
    jobs = [thread.launch(lambda i=i: seen.append((i, threading.get_ident()))) for i in range(50)]
    thread.synchronize()
    assert [i for i, _ in seen] == [*range(50)]
    assert len({ident for _, ident in seen} - {threading.get_ident()}) == 1
    assert all(job.done() for job in jobs)
    assert thread.launch(divmod, 7, 2).result() == (3, 1)


def test_an_error_nobody_asked_for_is_told_once_by_the_next_call(thread):
    for tell in (thread.synchronize, lambda: thread.launch(list)):
        done = threading.Event()
        job = thread.launch(fails)
        job.add_done_callback(lambda _, done=done: done.set())
        done.wait(60)
        with pytest.raises(
            RuntimeError, match=r"work on the optimizer thread failed: KeyError\('on purpose'\)"
        ) as caught:
            tell()
        assert type(caught.value.__cause__) is KeyError
        tell()


def test_an_error_that_was_asked_for_is_not_told_again(thread):
    with pytest.raises(KeyError):
        thread.launch(fails).result()
    assert isinstance(thread.launch(fails).exception(), KeyError)
    with pytest.raises(KeyError):
        thread.step(fails, is_async=False)
    thread.synchronize()
    thread.launch(list).result()


def test_work_behind_a_failure_fails_with_it(thread):
    release = threading.Event()
    seen = []
    thread.launch(release.wait)
    thread.launch(fails)
    behind = [thread.launch(seen.append, i) for i in range(3)]
    release.set()
    with pytest.raises(RuntimeError, match="on purpose"):
        thread.synchronize()
    assert all(job.done() for job in behind)  # nobody waits for a job that is forgotten
    for job in behind:
        error = job.exception()
        assert "not run: earlier work on the optimizer thread failed" in str(error)
        assert type(error.__cause__) is KeyError
    thread.launch(seen.append, "later").result()
    assert seen == ["later"]


def test_a_job_that_was_cancelled_is_left_out(thread):
    release = threading.Event()
    thread.launch(release.wait)
    job = thread.launch(fails)
    assert job.cancel()
    release.set()
    assert thread.launch(divmod, 7, 2).result() == (3, 1)
    with pytest.raises(CancelledError):
        job.result()
    thread.synchronize()


def test_what_a_job_held_is_let_go(thread):
    tensor = torch.ones(3)
    alive = weakref.ref(tensor)
    thread.launch(tensor.add_, 1).result()
    thread.synchronize()
    del tensor
    gc.collect()
    assert alive() is None


def test_synchronize_on_the_thread_itself_is_refused(thread):
    error = thread.launch(thread.synchronize).exception()
    assert "would wait for itself" in str(error)
    assert thread.launch(thread.here).result()
    assert not thread.here()


def test_closing_finishes_what_was_launched_and_refuses_the_rest():
    thread, seen = OptimizerThread("named"), []
    for i in range(20):
        thread.launch(seen.append, i)
    thread.close()
    thread.close()
    assert seen == [*range(20)]
    assert not thread.is_open
    with pytest.raises(ClosedError, match="the named thread is closed: make a new OptimizerThread"):
        thread.launch(list)


def test_closing_tells_of_a_failure_and_from_its_own_thread_does_not_wait():
    thread = OptimizerThread()
    thread.launch(fails)
    with pytest.raises(RuntimeError, match="on purpose"):
        thread.close()
    thread.close()
    other = OptimizerThread()
    other.launch(other.close).result()
    other.close()


def test_the_shared_thread_is_one_until_it_is_closed():
    first = shared_thread()
    assert shared_thread() is first
    first.close()
    second = shared_thread()
    assert second is not first
    assert second.launch(divmod, 7, 2).result() == (3, 1)


def test_a_launcher_hears_of_work_that_its_launcher_dropped():
    held, heard = [], []

    def launch(run):
        future = Future()
        held.append((run, future))
        return future

    launcher = Launcher(launch)
    for drop in (Future.cancel, lambda future: future.set_exception(OSError("dropped"))):
        job = launcher.send(list, on_error=heard.append)
        drop(held[-1][1])
        assert job.done()
        assert type(job.exception()) is type(heard[-1])
    assert [type(error) for error in heard] == [CancelledError, OSError]


def test_a_launcher_without_futures_will_do():
    threads = []

    def launch(run):  # in order: each waits for the one before
        before = threads[-1] if threads else None
        threads.append(threading.Thread(target=lambda: (before and before.join(), run())))
        threads[-1].start()

    class OneThread(Launcher):
        def here(self):
            return threading.current_thread() in threads

    launcher = OneThread(launch)
    assert launcher.call(divmod, 7, 2) == (3, 1)
    assert isinstance(launcher.send(fails).exception(), KeyError)


def test_a_dropped_update_closes_the_scaler_even_if_it_was_dropped_at_once():
    failed = Future()
    failed.set_exception(OSError("no room"))
    scaler = GradScaler("cpu", launch=lambda run: failed)
    scaler.scale(torch.tensor(1.0))
    with pytest.raises(OSError, match="no room"):
        scaler.update(is_async=False)
    scaler.update()
    with pytest.raises(ClosedError, match="no room"):
        scaler.scale(torch.tensor(1.0))


def test_a_launcher_whose_thread_is_gone_says_why():
    launcher, gone = Launcher([].append), RuntimeError("this process is a fork")
    launcher.after_fork(gone)
    with pytest.raises(ClosedError, match="the optimizer's thread is gone: make a new scaler") as caught:
        launcher.send(list)
    assert caught.value.__cause__ is gone


def test_at_the_end_each_thread_is_closed_and_each_failure_told(monkeypatch, capsys):
    class Thread:
        def __init__(self, name):
            self.name = name

        def close(self):
            raise RuntimeError(f"{self.name} failed")

    monkeypatch.setattr(optimizer_thread, "_alive", [Thread("one"), Thread("two")])
    optimizer_thread._close_all()
    assert capsys.readouterr() == ("", "ampsim: one failed\nampsim: two failed\n")
