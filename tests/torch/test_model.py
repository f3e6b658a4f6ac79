"""The ticket protocol, model-checked: each interleaving of a client and an executor.

`tickets.pml` is the model; Spin (Debian's ``spin``) explores it. Each planted mistake must be
found, one of them by liveness alone.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).parent / "tickets.pml"
HAS_SPIN = shutil.which("spin") and shutil.which("gcc")


@pytest.mark.deep
@pytest.mark.skipif(not HAS_SPIN, reason="needs Spin and gcc: apt-get install spin gcc")
@pytest.mark.parametrize(
    ("depth", "bug", "errors"),
    [
        (0, 0, ("0", "0")),
        (1, 0, ("0", "0")),
        (2, 0, ("0", "0")),
        (3, 0, ("0", "0")),
        (1, 1, ("1", None)),  # one ticket too many
        (1, 2, ("1", None)),  # published before it is made
        (1, 3, ("0", "1")),  # no wake-up: only liveness sees it
        (1, 4, ("1", None)),  # carries the newest version
    ],
)
def test_protocol_is_safe_and_terminates(tmp_path, depth, bug, errors):
    def run(*command):
        done = subprocess.run(  # noqa: S603
            command, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    run("spin", f"-DK={depth}", f"-DBUG={bug}", "-a", str(MODEL))
    run("gcc", "-w", "-DSAFETY", "-o", "safety", "pan.c")
    run("gcc", "-w", "-o", "liveness", "pan.c")
    outputs = run("./safety", "-noltl"), run("./liveness", "-a", "-f")
    for output, expected in zip(outputs, errors, strict=True):
        if expected is not None:
            assert re.search(r"errors: (\d+)", output).group(1) == expected
