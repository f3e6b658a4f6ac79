"""A scaler per rank: what one finds all know, on two real processes; see ranks.py for what these do."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import ampsim
from ampsim.torch import GradScaler
from ampsim.torch.step.ranks import Ranks
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


def three_ranks():
    ranks = object.__new__(Ranks)
    ranks._group, ranks._members = None, {0, 1, 2}
    return ranks


def test_a_difference_on_a_rank_in_the_middle_is_told(monkeypatch):
    def gather(everyone, mine, group):
        everyone[:] = [mine, {"depth": "2"}, mine]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    told = "depth=1 on rank 0, depth=2 on rank 1, depth=1 on rank 2"
    with pytest.raises(ValueError, match=rf"^GradScaler\(\) with {told}: expected the same on all ranks of the group"):
        three_ranks().check_equal("GradScaler()", {"depth": 1})


def test_of_a_collective_that_failed_the_first_line_is_told(monkeypatch):
    def gather(everyone, mine, group):
        raise RuntimeError("timed out\nframe #0: c10d")

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    with pytest.raises(RuntimeError, match=r"^the ranks did not agree on GradScaler\(\): .* \(timed out\)$"):
        three_ranks().check_equal("GradScaler()", {})


@pytest.mark.parametrize(("mesh", "own"), [([0, 2], True), ([1, 3], False), ([3], False), (None, False)])
def test_the_part_on_this_rank_is_taken_where_the_group_has_all_others(mesh, own):
    grad = SimpleNamespace(device_mesh=mesh and SimpleNamespace(mesh=torch.tensor(mesh)), to_local=lambda: "own part")
    assert three_ranks()._own(grad) == ("own part" if own else grad)
