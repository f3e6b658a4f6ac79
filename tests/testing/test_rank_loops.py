"""Ranks on the parts of a batch are one rank on the whole: right loops are not accused, wrong ones are caught."""

import pytest

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from ampsim.testing import Loop, check_loop  # noqa: E402
from ampsim.testing.loop.judge import judge_loop  # noqa: E402
from tests.testing import loops  # noqa: E402
from tests.testing.rank_loops import RIGHT, WRONG, backward, flags, mean  # noqa: E402

CHECK = "ranks_equal_one_process"


def judged(make):
    (result,) = judge_loop(make, loops.batches(), [CHECK])
    return result.outcome, result.text


@pytest.mark.parametrize("name", RIGHT)
def test_right_loop_passes(name):
    assert judged(RIGHT[name]) == ("passed", "")


def test_ampsim_loop_passes_all_checks():
    assert {each.outcome for each in check_loop(RIGHT["ours"], loops.batches())} == {"passed"}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loop_is_caught(name):
    make, said = WRONG[name]
    outcome, text = judged(make)
    assert outcome == "failed"
    assert text.startswith(f"{CHECK}: ")
    assert said in text.splitlines()[0]
    assert "\n  cause    " in text


def test_waiting_rank_names_missing_rank():
    _, text = judged(WRONG["neuron_sp_154_comes_to_the_collective_if_it_steps"][0])
    assert "without rank" in text.splitlines()[0]
    assert "with a NaN in one element of model.2.bias's gradient on rank 0" in text.splitlines()[0]


def uneven(scaler, group=None):
    loop = RIGHT["averaged"](scaler, group)
    return Loop(loop.step, loop.state, split=lambda batch, count: [batch])


def raising(scaler, group=None):
    if group:
        raise KeyError("LOCAL_RANK")
    return RIGHT["averaged"](scaler)


def overflowing(scaler, group=None):
    t = loops.Trainer(scaler)

    def step(batch):
        t.backward((batch[0] * torch.tensor(3e38), batch[1]))
        mean(t, group)
        t.update()

    return Loop(step, t.state, split=loops.cut)


def naming_nothing(scaler, group=None):
    return Loop(RIGHT["averaged"](scaler, group).step, {"data": torch.zeros(())}, split=loops.cut)


NOT_ASKED = {
    "no parameters": (
        naming_nothing,
        "no backward pass reached a parameter: name the model or the optimizer",
    ),
    "no group": (
        loops.sgd,
        "pass make(scaler, group=None) to test ranks",
    ),
    "one part": (uneven, "on rank 0 split(batch, 2) returned 1 parts: expected one per rank"),
    "raises": (raising, "on rank 0 make raised KeyError: 'LOCAL_RANK' (test_rank_loops.py:"),
    "overflows": (overflowing, "a batch overflows at scale 256"),
}


@pytest.mark.parametrize("name", NOT_ASKED)
def test_inapplicable_check_is_skipped(name):
    make, why = NOT_ASKED[name]
    outcome, text = judged(make)
    assert (outcome, text[: len(why)]) == ("skipped", why)


def test_no_default_group_is_left_behind():
    judged(RIGHT["averaged"])
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("kind", [tuple, lambda parts: dict(enumerate(parts))])
def test_batch_is_cut_by_its_rows(kind):
    def whole(scaler, group=None):
        loop = RIGHT["averaged"](scaler, group)
        return Loop(lambda batch: loop.step((batch[0], batch[1])), loop.state)

    for rows, outcome, said in ((8, "passed", ""), (7, "skipped", "pass Loop(split=...)")):
        given = [kind(part[:rows] for part in batch) for batch in loops.batches()]
        (result,) = judge_loop(whole, given, [CHECK])
        assert (result.outcome, said in result.text) == (outcome, True), result.text


def test_reduced_and_broadcast_flag_passes():
    """The groups of threads know dist.reduce."""

    def make(scaler, group=None):
        t = loops.Trainer(scaler)

        def step(batch):
            backward(t, batch)
            for flag in flags(t) if group else ():
                torch.distributed.reduce(flag, 0, torch.distributed.ReduceOp.MAX, group)
                torch.distributed.broadcast(flag, 0, group)
            t.update()

        return Loop(step, t.state, split=loops.cut)

    assert judged(make) == ("passed", "")
