"""The notebook's three cells, run as a notebook runs them, but for the time they take and the installation."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ampsim.card.run import PROBES
from ampsim.card.verify import read
from tests import warm

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "card.ipynb"


def cells() -> list[str]:
    return [
        "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"
    ]


def commands(cell: str) -> list[str]:
    lines = [line for line in cell.splitlines() if not line.startswith("#")]
    assert all(line.startswith(("!", "%pip ")) for line in lines), "a cell is comments and commands"
    return lines


def execute(line: str, folder: Path) -> str:
    """Run a line that begins with ``!`` as a notebook does, with the Python of this test."""
    python, *rest = shlex.split(line.removeprefix("!"))
    assert python == "python"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [warm.python(), *rest]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_three_cells_install_probe_and_verify(tmp_path: Path) -> None:
    (install,), (probe,), (judge,) = map(commands, cells())
    assert install == '%pip install -q "ampsim[card]"'
    assert " --minutes 8 " in probe
    assert "done; ampsim card verify card.jsonl" in execute(probe.replace("--minutes 8", "--minutes 0.05"), tmp_path)
    said = execute(judge, tmp_path)
    assert "ampsim's scaler breaks no law" in said
    assert said.count("holds") > 5
    assert [record["probe"] for record in read(tmp_path / "card.jsonl")[1:]] == [*PROBES]


def test_it_is_committed_without_output() -> None:
    found = json.loads(NOTEBOOK.read_text())
    assert [cell["outputs"] for cell in found["cells"]] == [[], [], []]
    assert (found["nbformat"], len({cell["id"] for cell in found["cells"]})) == (4, 3)
