"""Skipped without JAX; with it the CPU only, and one thread."""

import importlib.util
import os

# Read when jax is first imported. torch, too, needs room on a card.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

collect_ignore_glob = [] if importlib.util.find_spec("jax") else ["test_*.py"]
