"""The page for maintainers says what happens, and the commands of the CI file that it offers do what they should."""

import doctest
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests import warm

pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
yaml = pytest.importorskip("yaml", reason="pip install -c constraints.txt pyyaml")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "ampsim/testing/MAINTAINERS.md"
FILE = ROOT / ".ci/conformance.yml"
WORKFLOW: dict[Any, Any] = yaml.safe_load(FILE.read_text())
INPUTS = WORKFLOW[True]["workflow_call"]["inputs"]  # YAML 1.1 reads `on` as true
JOB = WORKFLOW["jobs"]["conformance"]
RUNS = {step["name"]: step["run"] for step in JOB["steps"] if "run" in step}


def test_the_page_says_what_happens() -> None:
    test = doctest.DocTestParser().get_doctest(PAGE.read_text(), {}, PAGE.name, str(PAGE), 0)
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert (result.attempted > 9, result.failed) == (True, 0)


def test_the_first_failing_law_takes_ten_lines() -> None:
    code = PAGE.read_text().split("```")[1]
    assert sum(line.startswith((">>>", "...")) for line in code.splitlines()) + 1 <= 10  # and pip


def test_the_workflow_is_short_and_is_given_what_it_reads() -> None:
    text = FILE.read_text()
    assert len(text.splitlines()) <= 40
    assert set(re.findall(r"inputs\.(\w+)", text)) == {*INPUTS}
    assert not [run for run in RUNS.values() if "${{" in run], "an input in a command's text can run anything"
    for call in yaml.safe_load(PAGE.read_text().split("```yaml")[1].split("```")[0])["jobs"].values():
        required = {name for name, each in INPUTS.items() if each.get("required")}
        assert required <= {*call["with"]} <= {*INPUTS}


def run(name: str, folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run a step as GitHub does, with `ampsim` and `pip` on the path as this interpreter's and as an echo."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for tool, line in {"ampsim": f'exec "{warm.python()}" -m ampsim "$@"', "pip": 'echo "pip $@"'}.items():
        (tools / tool).write_text(f"#!/bin/sh\n{line}\n")
        (tools / tool).chmod(0o755)
    given = {name: each.get("default", "") for name, each in INPUTS.items()} | inputs
    env = {key: given[value.strip("${} ").removeprefix("inputs.")] for key, value in JOB["env"].items()}
    paths = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return subprocess.run(  # noqa: S603
        ["bash", "-e", "-o", "pipefail", "-c", RUNS[name]],  # noqa: S607
        capture_output=True, text=True, check=False, cwd=folder,
        env={**os.environ, **env, **paths, "GITHUB_STEP_SUMMARY": str(folder / "summary.md")},
    )  # fmt: skip


def test_what_it_installs_exists(tmp_path: Path) -> None:
    said = run("install", tmp_path).stdout
    assert said.splitlines()[0] == "pip install -e . ./.ampsim[testing]"  # the torch that is there stays
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [each for each in extras["testing"] if "torch" in each] == []


def test_a_finding_fails_the_step_and_stands_in_the_summary(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from torch.amp import GradScaler\n")
    options = {"targets": "mine:GradScaler", "options": "--check scale_stays_normal -n 5"}
    assert run("check", tmp_path, **options).returncode == 1
    assert run("report", tmp_path).returncode == 0
    summary = (tmp_path / "summary.md").read_text()
    assert "| L5 | `scale_stays_normal` | ✗ |" in summary
    assert "scale_stays_normal: the scale fell to 2**-128" in summary
