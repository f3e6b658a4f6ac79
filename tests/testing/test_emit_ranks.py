"""An emitted test of ranks fails for the wrong scaler, in processes with gloo, and passes for a right one."""

from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from ampsim.testing.emit.ranks import TEMPLATES, _test, write  # noqa: E402
from ampsim.testing.ranks.laws import LAWS  # noqa: E402
from ampsim.testing.ranks.scenario import NONE, Scenario  # noqa: E402
from tests.test_cli import run  # noqa: E402
from tests.testing.rank_bugs import WRONG, PollsInTurn, Right  # noqa: E402
from tests.testing.test_emit import outcome  # noqa: E402

SHARDED = "torch.distributed.fsdp.sharded_grad_scaler:ShardedGradScaler"
BUGS = {law: bug for bug, law in reversed(WRONG.items()) if bug is not PollsInTurn}  # which is right in the usual order
QUICK = ("step_counts_agree", "resume_with_one_ranks_file_is_invisible", "nobody_waits_for_ever")


def test_every_law_has_a_template() -> None:
    assert set(TEMPLATES) == set(LAWS)


@pytest.mark.parametrize("law", [law if law in QUICK else pytest.param(law, marks=pytest.mark.deep) for law in LAWS])
def test_it_fails_for_the_wrong_scaler_and_passes_for_a_right_one(law: str, peer: ModuleType) -> None:
    peer.Scaler = BUGS[law]
    source, raises = write(law, "peer:Scaler", 2)
    assert not raises
    assert "ampsim" not in source
    assert len(source.splitlines()) <= 65, source
    assert outcome(source) == "failed", source
    peer.Scaler = Right
    assert outcome(source) == "passed", source


def test_a_history_is_held_against_the_one_in_which_all_overflow() -> None:
    once = Scenario((NONE, frozenset({(1, 0)})), optimizers=2)
    assert _test(LAWS["one_overflow_on_ranks_is_one_overflow"], once, 2).splitlines() == [
        "ranks, _ = run([[], [(1, 0)]])",
        "expected, _ = run([[], [(0, 0), (0, 1), (1, 0), (1, 1)]])",
        "assert ranks == expected",
    ]
    assert "for i in [0, 2]" in _test(LAWS["clean_steps_are_taken"], Scenario((*once.overflows, NONE)), 2)


@pytest.mark.usefixtures("warm_python")
def test_the_command_writes_that_torchs_sharded_scaler_leaves_inf_in_parameters(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    assert run("emit-test", "parameters_stay_finite", SHARDED, "--ranks", "2", "-o", str(file)) == (0, "")
    source = file.read_text()
    assert "To search upstream first: ShardedGradScaler found_inf fused inf nan parameters" in source
    assert outcome(source) == "failed"
    ours = source.replace("ShardedGradScaler", "GradScaler").replace("process_group=", "group=")
    assert outcome(ours.replace(SHARDED.partition(":")[0], "ampsim.torch")) == "passed"


def test_a_law_that_holds_is_one_sentence() -> None:
    code, text = run("emit-test", "verdicts_agree", "ampsim.torch:GradScaler", "--ranks", "2")
    assert (code, "holds for ampsim.torch:GradScaler: there is nothing to emit" in text) == (2, True), text
