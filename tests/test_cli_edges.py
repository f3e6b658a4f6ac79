"""The command where its output meets the world: a full disk, a reader that has gone, ASCII, a
folder, a device.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

posix = pytest.mark.skipif(os.name != "posix", reason="needs a shell and /dev/full")
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
AMPSIM = f"{shlex.quote(sys.executable)} -m ampsim"


def shell(command: str, **environment: str) -> tuple[int, str, str]:
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(  # noqa: S603
        ["bash", "-o", "pipefail", "-c", command],  # noqa: S607
        capture_output=True, text=True, check=False, cwd=root, env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@posix
@pytest.mark.parametrize("command", ["dialects", "lint --rules"])
def test_closed_pipe_is_no_failure(command: str) -> None:
    assert shell(f"{AMPSIM} {command} | true") == (0, "", "")


@FULL
@pytest.mark.parametrize("command", ["dialects", "lint --rules"])
def test_full_disk_prints_an_error(command: str) -> None:
    code, _, said = shell(f"{AMPSIM} {command} > /dev/full")
    assert code == 2
    assert "No space left on device" in said
    assert "Traceback" not in said


@posix
def test_a_closed_output_is_no_failure() -> None:
    assert shell(f"{AMPSIM} replay torch.amp.GradScaler 0010 >&-")[0] == 0


def test_unencodable_characters_are_escaped() -> None:
    code, _, said = shell(f"{AMPSIM} replay ünbekannt 01", PYTHONIOENCODING="ascii")
    assert code == 2
    assert "'\\xfcnbekannt'" in said
