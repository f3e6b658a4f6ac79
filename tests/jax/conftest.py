"""Skipped without JAX; with it the CPU only, and one thread."""

import importlib.util
import os
from collections.abc import Iterator

import pytest

# Read when jax is first imported. torch, too, needs room on a card.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

collect_ignore_glob = [] if importlib.util.find_spec("jax") else ["test_*.py"]

# They ask what is called with what. What XLA makes of arithmetic when it optimizes, the other files
# ask.
QUICKLY_COMPILED = {
    "checkpoint",
    "dynamic_scale",
    "trees",
    "fp8",
    "grad",
    "interop",
    "loops",
}


@pytest.fixture(autouse=True, scope="module")
def quickly_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave XLA's optimizations, a third of these files' time, to the deep tests."""
    import jax

    quickly = (
        request.path.stem.removeprefix("test_") in QUICKLY_COMPILED
        and os.environ.get("AMPSIM_DEEP") != "1"
    )
    jax.config.update("jax_disable_most_optimizations", quickly)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
