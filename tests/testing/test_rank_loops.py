"""Ranks that get the same batches are one process: right loops pass, and wrong ones are caught."""

import pytest

torch = pytest.importorskip(
    "torch", reason="pip install -c constraints.txt 'ampsim[torch]'"
)
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from ampsim.testing import check_loop  # noqa: E402
from ampsim.testing.loop.judge import judge_loop  # noqa: E402
from tests.testing import loops  # noqa: E402
from tests.testing.rank_loops import RIGHT, WRONG  # noqa: E402

CHECK = "ranks_equal_one_process"


def judged(make):
    (result,) = judge_loop(make, loops.batches(), [CHECK])
    return result.outcome, result.text


@pytest.mark.parametrize("name", RIGHT)
def test_right_loop_passes(name):
    assert judged(RIGHT[name]) == ("passed", "")


def test_ampsim_loop_passes_all_checks():
    assert {each.outcome for each in check_loop(RIGHT["ours"], loops.batches())} == {
        "passed"
    }


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loop_is_caught(name):
    outcome, text = judged(WRONG[name])
    assert outcome == "failed"
    assert ("waits in all_reduce" in text) == name.startswith("neuron_sp_154")
    assert "\n  cause    " in text


def raising(scaler, group=None):
    if group:
        raise KeyError("LOCAL_RANK")
    return RIGHT["averaged"](scaler)


def test_no_default_group_is_left_behind():
    judged(RIGHT["averaged"])
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (loops.sgd, "pass make(scaler, group=None)"),
        (raising, "on rank 0 make raised KeyError"),
    ],
)
def test_inapplicable_check_is_skipped(make, why):
    outcome, text = judged(make)
    assert (outcome, text[: len(why)]) == ("skipped", why)
