"""One torch thread, an optimizer's thread as a fixture, and tests in processes of their own."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip(
    "torch", reason="pip install -c constraints.txt 'ampsim[torch]'"
)
torch.set_num_threads(1)

CHILD = "AMPSIM_OWN_PROCESS"


@pytest.fixture
def thread():
    from ampsim.torch import OptimizerThread  # behind the skip

    thread = OptimizerThread()
    yield thread
    thread.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test with the mark ``own_process`` by a pytest of its own."""
    if pyfuncitem.get_closest_marker("own_process") is None or CHILD in os.environ:
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
    done = subprocess.run(  # noqa: S603
        [*command, pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env={**os.environ, CHILD: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(done.stdout + done.stderr, pytrace=False)
    return True
