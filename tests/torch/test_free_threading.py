"""The ticket register under free-running threads: here with the GIL, and without it where there is such a Python.

A free-threaded interpreter is taken from AMPSIM_FREE_THREADED_PYTHON, or ``python3.13t``/``python3.14t`` on the path.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STRESS = Path(__file__).parent / "stress_tickets.py"
FREE = os.environ.get("AMPSIM_FREE_THREADED_PYTHON") or shutil.which("python3.14t") or shutil.which("python3.13t")


def stress(python: str, updates: int) -> str:
    command = [python, str(STRESS), str(updates)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)  # noqa: S603 - ours
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_free_running_threads_with_the_gil() -> None:
    assert "101 updates, GIL on, 0 wrong" in stress(sys.executable, 25)


@pytest.mark.deep
@pytest.mark.skipif(
    FREE is None, reason="needs a free-threaded CPython: build 3.13 with --disable-gil, set AMPSIM_FREE_THREADED_PYTHON"
)
def test_free_running_threads_without_the_gil(capsys: pytest.CaptureFixture[str]) -> None:
    said = stress(FREE, 20_000)
    with capsys.disabled():
        print("\n" + said)
    assert "GIL off, 0 wrong" in said
