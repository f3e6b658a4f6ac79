"""Units on a Ray cluster, with the real package where it is installed (`make deep` installs it)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import runner
from tests.experiments import tiny

ROOT = Path(__file__).parents[2]

# The worker of one unit is killed, once.
KILLS = """
def run(config, arm, seed, device, tick):
    import os, pathlib, signal

    marker = pathlib.Path({folder!r}, "killed")
    if (arm.power, seed) == (2, 1) and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {{"loss": [config.factor**arm.power + seed] * config.steps}}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one experiment of its own: nodes get the code of the runner's tree."""
    for folder in ("ampsim", "experiments/runner", "figures"):
        ignored = shutil.ignore_patterns("__pycache__", "*.svg", "*.html")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for name in ("__init__.py", "__main__.py"):
        shutil.copy(ROOT / "experiments" / name, tmp_path / "experiments")
    tiny.write(tmp_path / "experiments", "tiny")
    with (tmp_path / "experiments" / "tiny.py").open("a") as file:
        file.write(KILLS.format(folder=str(tmp_path)))
    return tmp_path


def rows(checkout: Path, *options: str) -> list[str]:
    """Run the experiment in a checkout and return its records."""
    command = [sys.executable, "-m", "experiments", "tiny", "--force", *options]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    subprocess.run(command, cwd=checkout, env=environment, check=True)  # noqa: S603 - our own
    head, *lines = (checkout / "experiments/data/cpu/tiny.jsonl").read_text().splitlines()
    assert "provenance" in json.loads(head)
    return lines


@pytest.mark.framework("ray", how="pip install -c constraints.txt --group ray")
def test_a_killed_workers_unit_runs_again(checkout: Path) -> None:
    on_ray = rows(checkout, "--on", "ray")
    assert (checkout / "killed").exists()
    assert on_ray == rows(checkout)


def test_unknown_place_is_rejected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main("tiny", ["--on", "slurm"]) == 2
    assert "on=slurm" in capsys.readouterr().err
