"""pytest's options of the checks reach the checks that a decorator makes, on workers, too."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
ROOT = Path(__file__).parents[2]
PROGRAM = """
import torch
from ampsim.testing import parametrize_with_checks

class Mine(torch.amp.GradScaler):
    def state_dict(self):
        return {**super().state_dict(), "_growth_tracker": 0}

@parametrize_with_checks([Mine], checks=["state_dict_continues_run"], seed=3)
def test_mine(scaler, check):
    print("ran with", check.examples, check.seed)
    check(scaler)
"""


def run(folder: Path, *options: str) -> str:
    """Run pytest with the plugin on a program, and return what it prints."""
    (folder / "test_mine.py").write_text(PROGRAM)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "ampsim.testing.plugin",
        *options,
        ".",
    ]
    return subprocess.run(  # noqa: S603
        command, cwd=folder, env=environment, capture_output=True, text=True
    ).stdout


def test_options_replace_arguments(tmp_path: Path) -> None:
    printed = run(tmp_path, "--ampsim-examples", "7", "--ampsim-seed", "11")
    assert "ampsim: examples=7" in printed
    assert "ran with 7 11" in printed
    assert "--examples 7 --seed 11" in printed  # the line that repeats the failure


def test_arguments_count_without_options(tmp_path: Path) -> None:
    assert "ran with None 3" in run(tmp_path)


def test_options_reach_workers(tmp_path: Path) -> None:
    printed = run(tmp_path, "-p", "xdist.plugin", "-n", "1", "--ampsim-seed", "11")
    assert "ran with None 11" in printed


def test_too_few_examples_are_refused(tmp_path: Path) -> None:
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "ampsim.testing.plugin",
        "--ampsim-examples",
        "0",
    ]
    done = subprocess.run(  # noqa: S603
        command,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--ampsim-examples 0: expected at least 1" in done.stderr


def test_installed_pytest_finds_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"ampsim": "ampsim.testing.plugin"}
