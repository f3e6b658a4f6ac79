"""The ticket protocol, model-checked: every interleaving of a client and an executor, safety and liveness.

`tickets.pml` is the model; Spin (Debian's ``spin``) explores it. Each planted mistake must be found, one of
them by liveness alone.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).parent / "tickets.pml"
pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(
        not (shutil.which("spin") and shutil.which("gcc")), reason="needs Spin and gcc: apt-get install spin gcc"
    ),
]


def errors(folder: Path, depth: int, bug: int) -> tuple[int, int]:
    """Errors of safety and of liveness at this depth with this mistake planted."""

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)  # noqa: S603
        return done.stdout

    run("spin", f"-DK={depth}", f"-DBUG={bug}", "-a", str(MODEL))
    run("gcc", "-w", "-DSAFETY", "-o", "safety", "pan.c")
    run("gcc", "-w", "-o", "liveness", "pan.c")
    found = [run("./safety", "-noltl"), run("./liveness", "-a", "-f")]
    safety, liveness = (int(re.search(r"errors: (\d+)", text).group(1)) for text in found)
    return safety, liveness


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_the_protocol_is_safe_and_ends(tmp_path: Path, depth: int) -> None:
    assert errors(tmp_path, depth, bug=0) == (0, 0)


@pytest.mark.parametrize("bug", [1, 2, 4], ids=["one ticket too many", "published too early", "newest version"])
def test_a_planted_mistake_is_unsafe(tmp_path: Path, bug: int) -> None:
    safety, _ = errors(tmp_path, 1, bug)
    assert safety == 1


def test_a_forgotten_wake_up_is_seen_by_liveness_alone(tmp_path: Path) -> None:
    assert errors(tmp_path, 1, bug=3) == (0, 1)
