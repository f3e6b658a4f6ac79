"""Hypothesis profiles, the markers' skips, and one thread for whatever computes."""

import atexit
import functools
import gc
import importlib.util
import os

import pytest
from hypothesis import HealthCheck, settings

# More threads are slower on shared cores and change how fp16 sums round. Read when torch is first
# imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault(
    "AMPSIM_KERNELS", "own"
)  # tests are of what users have; data is made with the common kernels

# As in a user's process, the command is built once: that takes five times as long as most calls of
# it.
if importlib.util.find_spec("typer"):  # tests of a device run without it
    import typer.testing

    typer.testing._get_command = functools.cache(typer.testing._get_command)

gc.set_threshold(1_000_000)  # while all is imported, of which nothing is garbage

LOCKSTEP_STEPS = 25  # rules an example
_COMMON = {
    "deadline": None,
    "stateful_step_count": LOCKSTEP_STEPS,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("dev", max_examples=50, **_COMMON)
# The same examples every time: a commit is not red because of another commit's luck. `deep`
# explores. 100 examples keep `make test` within its minutes.
settings.register_profile(
    "ci", max_examples=100, derandomize=True, print_blob=True, **_COMMON
)
settings.register_profile("deep", max_examples=20_000, print_blob=True, **_COMMON)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for reason in filter(None, (_deep(item), _peer(item), _gpu(item))):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Keep what is imported by now, a million objects, out of all later collections, and make those
    rarer.
    """
    gc.freeze()
    gc.set_threshold(50_000)


@pytest.fixture(autouse=True, scope="module")
def kept_out_of_collections() -> None:
    """Leave what the files before have imported and keep out of this one's collections: each would
    take a second.
    """
    gc.freeze()


# Nanobind reports as leaked, at the very end, what is not looked through then. Not before: pytest
# looks twice.
atexit.register(gc.unfreeze)


def _deep(item: pytest.Item) -> str | None:
    wanted = os.environ.get("AMPSIM_DEEP") == "1"
    return (
        None
        if wanted or not item.get_closest_marker("deep")
        else "takes minutes: run `make deep`"
    )


def _peer(item: pytest.Item) -> str | None:
    """`@pytest.mark.framework("flax", "jax")` names the modules it imports, ``how=`` what installs
    them.
    """
    marker = item.get_closest_marker("framework")
    missing = (
        [name for name in marker.args if importlib.util.find_spec(name) is None]
        if marker
        else []
    )
    how = (
        marker.kwargs.get("how", "pip install -c constraints.txt --group frameworks")
        if marker
        else ""
    )
    return f"needs {', '.join(missing)}: {how}" if missing else None


def _gpu(item: pytest.Item) -> str | None:
    if not item.get_closest_marker("gpu"):
        return None
    if importlib.util.find_spec("torch") is None:
        return "needs torch: pip install -c constraints.txt 'ampsim[torch]'"
    import torch  # seconds, so only where a gpu test was collected

    return (
        None
        if torch.cuda.is_available()
        else "needs a CUDA device: run `make gpu` where there is one"
    )
