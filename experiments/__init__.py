"""Training runs that exercise loss scalers. Each file is one experiment; its docstring is the
question.

`python -m experiments` lists the experiments. `python -m experiments.<stem>` runs one, and `python
-m experiments all` runs those whose data is missing or stale. Each writes
`experiments/data/<device>/<stem>.jsonl` in the format of `ampsim.core.json_lines`. Experiments may
import `ampsim` and frameworks, but not matplotlib. Start with `scale_crash.py`.
"""

import os
import platform

# Read when torch or JAX is first imported, hence here. One thread: with more, the sums of native
# fp16 products come out in another order and on shared cores a step takes ten times as long.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault(
    "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
)  # what deterministic cuBLAS asks for
os.environ.setdefault(
    "XLA_PYTHON_CLIENT_PREALLOCATE", "false"
)  # JAX would take three quarters of a card from torch

# torch, MKL, numpy and its OpenBLAS choose kernels by what the processor can do and by who made it,
# and so the order of sums. These gave equal data on processors of two makers. AMPSIM_KERNELS=own:
# none.
KERNELS = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "COMPATIBLE",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Haswell",
}
if os.environ.setdefault(
    "AMPSIM_KERNELS", "common"
) == "common" and platform.machine() in (
    "x86_64",
    "AMD64",
):
    os.environ |= KERNELS
