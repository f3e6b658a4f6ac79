"""A scaler per rank: what one finds all know, on two real processes; `ranks.py` is what they run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ampsim
from ampsim.torch import GradScaler

if not torch.distributed.is_available():
    pytest.skip("torch without torch.distributed", allow_module_level=True)


@pytest.mark.parametrize("histories", [25, pytest.param(500, marks=pytest.mark.deep)])
def test_ranks_match_reference_state_machine(tmp_path, histories):
    root = str(Path(ampsim.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-W", "error", str(Path(__file__).with_name("ranks.py"))]
    both = [
        subprocess.Popen(  # noqa: S603
            [*program, str(rank), str(tmp_path / "store"), str(histories)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate()[0] for process in both]
    assert [text.strip()[-4:] for text in outputs] == ["done", "done"], "\n".join(
        outputs
    )


def test_uninitialized_process_group_raises():
    with pytest.raises(RuntimeError, match="init_process_group"):
        GradScaler("cpu", group="world")
