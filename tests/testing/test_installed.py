"""An installed ampsim names the user's lines, and never its own as those of a library."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ampsim

pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")

SCRIPT = """
import torch
from MODULE import GradScaler
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
scaler = GradScaler("cpu")
for _ in range(8):
    optimizer.zero_grad()
    scaler.scale(model(torch.randn(4, 4)).square().mean()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # line 11
    scaler.step(optimizer)
    scaler.update()
    schedule.step()  # line 14
"""
LOOP = """
import torch
from ampsim.testing import Loop
batches = torch.ones(4, 3, 2)
def make(scaler):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step(batch):
        optimizer.zero_grad()
        scaler.scale(model(batch).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.unscale_(optimizer)  # line 12
    return Loop(step, {"model": model})
"""
SCALER = """
import torch
class Scaler(torch.amp.GradScaler):
    def update(self, new_scale=None):
        raise KeyError("no such state")  # line 5
"""
FINDINGS = ("train.py:11: ", "train.py:14: ")


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed") / "site-packages"
    source = Path(ampsim.__file__).parent
    shutil.copytree(
        source, folder / "ampsim", ignore=shutil.ignore_patterns("__pycache__")
    )
    return folder


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (SCRIPT.replace("MODULE", "torch.amp"), ["check-loop", "train.py"], FINDINGS),
        (
            SCRIPT.replace("MODULE", "ampsim.torch"),
            ["check-loop", "train.py"],
            FINDINGS,
        ),
        (LOOP, ["check-loop", "train:make"], ["(train.py:12)"]),
        (
            SCALER,
            ["check", "train:Scaler", "--check", "skipped_step_changes_nothing"],
            ["train.py:5 in update"],
        ),
    ],
    ids=["script", "own_scaler", "loop", "scaler"],
)
def test_installed_package_names_user_lines(packages, tmp_path, text, arguments, said):
    (tmp_path / "train.py").write_text(text)
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "ampsim", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode, done.stdout
    shown = done.stdout + done.stderr
    assert [line for line in said if line not in shown] == [], shown
    assert "ampsim/testing" not in shown, shown
    assert "library  " not in shown, shown
