"""One torch thread, and an optimizer's thread as a fixture."""

import pytest

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
torch.set_num_threads(1)


@pytest.fixture
def thread():
    from ampsim.torch import OptimizerThread  # behind the skip

    thread = OptimizerThread()
    yield thread
    thread.close()
