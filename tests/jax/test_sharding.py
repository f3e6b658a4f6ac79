"""Loops on 8 devices equal the loop on one, under both kinds of mesh axes."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_sharded_loops_equal_one_device() -> None:
    # Types and shardings do not depend on XLA's optimizations.
    changed = {"PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-m",
            "tests.jax.sharded_loops",
            "LossScale",
            "dynamic_loss_scale",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | changed,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 16  # 2 libraries, 2 meshes, 4 loops
    assert [line for line in lines if not line.endswith(": same")] == []
