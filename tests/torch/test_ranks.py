"""A scaler per rank: what one finds all know, on two real processes; see ranks.py for what these do."""

import os
import subprocess
from pathlib import Path

import pytest
import torch

import ampsim
from ampsim.torch import GradScaler
from tests import warm

if not torch.distributed.is_available():
    pytest.skip("torch without torch.distributed", allow_module_level=True)


@pytest.mark.parametrize("histories", [25, pytest.param(500, marks=pytest.mark.deep)])
def test_ranks_agree_as_the_reference_machine_on_what_they_found_together(tmp_path, histories):
    environment = {**os.environ, "PYTHONPATH": str(Path(ampsim.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [warm.python(), "-W", "error", str(Path(__file__).with_name("ranks.py"))]
    both = [
        subprocess.Popen(  # noqa: S603
            [*command, str(rank), str(tmp_path / "store"), str(histories)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    told = [process.communicate(timeout=600)[0] for process in both]
    assert [text.strip()[-4:] for text in told] == ["done", "done"], "\n".join(told)


def test_a_group_before_there_is_one_is_refused():
    text = r"group='world': expected torch.distributed to be initialized; call init_process_group\(\) before"
    with pytest.raises(RuntimeError, match=text):
        GradScaler("cpu", group="world")
