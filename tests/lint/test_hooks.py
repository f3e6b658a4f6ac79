"""The pre-commit hook and the action run the commands and report findings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampsim.lint import RULES

yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
ROOT = Path(__file__).parents[2]
STUCK = """
from torch.amp import GradScaler

class Stuck(GradScaler):
    def update(self, new_scale=None):
        super().update(self.get_scale())
"""


def run(
    command: str, folder: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a shell command in a folder with ``ampsim`` from this repository on the path."""
    script = folder / "bin" / "ampsim"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ampsim "$@"\n')
    script.chmod(0o755)
    path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path} | variables
    (folder / "train.py").write_text(RULES["AMP111"].wrong)
    return subprocess.run(  # noqa: S603
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_pre_commit_hook_reports_a_finding(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert {"id", "name", "entry", "language"} <= hook.keys()
    done = run(f"{hook['entry']} train.py", tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("train.py:5:5: AMP111 error: ")


def action() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the defaults of the action's inputs, and its steps that lint and that check."""
    read = yaml.safe_load((ROOT / "action.yml").read_text())
    install, lint, check = read["runs"]["steps"]
    assert install["run"] == 'python -m pip install "$GITHUB_ACTION_PATH[testing]"'
    inputs = {name: each["default"] for name, each in read["inputs"].items()}
    for step in (lint, check):
        assert "${{" not in step["run"], "an input in a command's text can run anything"
        assert set(step["env"].values()) <= {
            f"${{{{ inputs.{name} }}}}" for name in inputs
        }
    return inputs, lint, check


def test_action_annotates_a_finding(tmp_path: Path) -> None:
    inputs, lint, _ = action()
    done = run(lint["run"], tmp_path, PATHS=inputs["paths"])
    assert done.returncode == 1
    assert done.stdout.startswith("::error file=train.py,line=5,col=5,title=AMP111::")


def test_action_checks_a_scaler(tmp_path: Path) -> None:
    pytest.importorskip(
        "torch", reason="pip install -c constraints.txt 'ampsim[torch]'"
    )
    inputs, _, check = action()
    summary = tmp_path / "summary.md"
    (tmp_path / "stuck.py").write_text(STUCK)
    chosen = {
        "COMMAND": inputs["command"],
        "TARGETS": "stuck:Stuck",
        "OPTIONS": "--check overflow_backs_off_once",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    done = run(check["run"], tmp_path, **chosen)
    assert done.returncode == 1
    assert "overflow_backs_off_once" in summary.read_text()
