"""Training runs that put a loss scaler to work. One file an experiment; its docstring is the question.

`python -m experiments` lists them, `python -m experiments.<stem>` runs one, `python -m experiments all` runs
those whose data is missing or stale. Each writes `experiments/data/<device>/<stem>.jsonl` in the form of
`ampsim.records`. May import `ampsim` and frameworks, never matplotlib. Start with `scale_crash.py`.
"""

import os

# Read when torch or JAX is first imported, hence here. One thread: with more, the sums of native fp16 products come
# out in another order and on shared cores a step takes ten times as long.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what deterministic cuBLAS asks for
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take three quarters of a card from torch
