"""The pre-commit hook and the GitHub action run the command on a file and report its finding."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampsim.lint import RULES

yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
ROOT = Path(__file__).parents[2]


def run(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command in a folder with ``ampsim`` from this repository on the path."""
    script = folder / "bin" / "ampsim"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ampsim "$@"\n')
    script.chmod(0o755)
    path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path} | variables
    (folder / "train.py").write_text(RULES["AMP111"].wrong)
    return subprocess.run(  # noqa: S603
        ["/bin/sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_pre_commit_hook_reports_a_finding(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert {"id", "name", "entry", "language"} <= hook.keys()
    done = run(f"{hook['entry']} train.py", tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("train.py:5:5: AMP111 error: ")


def test_action_annotates_a_finding(tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    install, lint = action["runs"]["steps"]
    assert install["run"] == 'python -m pip install "$GITHUB_ACTION_PATH"'
    assert lint["env"] == {"PATHS": "${{ inputs.paths }}"}
    done = run(lint["run"], tmp_path, PATHS=action["inputs"]["paths"]["default"])
    assert done.returncode == 1
    assert done.stdout.startswith("::error file=train.py,line=5,col=5,title=AMP111::")
