"""Ctrl-C in a loop: wherever it strikes, the loop goes on or raises; nothing hangs."""

import subprocess
import sys
from pathlib import Path

import pytest

import ampsim


@pytest.mark.parametrize(
    ("arguments", "least"),
    [
        (["50", "1"], 300),
        pytest.param(["5000", "1", "deep"], 6000, marks=pytest.mark.deep),
        pytest.param(["5000", "2", "deep"], 6000, marks=pytest.mark.deep),
    ],
)
def test_loop_continues_after_interrupt(arguments, least):
    # A process of its own, which ends itself with the stack of each thread if it hangs.
    program = [sys.executable, str(Path(__file__).with_name("interrupts.py")), *arguments]
    environment = {"PYTHONPATH": str(Path(ampsim.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) >= least
