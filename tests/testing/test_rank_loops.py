"""Ranks on the parts of a batch are one rank on the whole: right loops are not accused, wrong ones are caught."""

import pytest

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from ampsim.testing import Loop, check_loop  # noqa: E402
from ampsim.testing.emit.loop import write  # noqa: E402
from ampsim.testing.loop.judge import judge_loop  # noqa: E402
from tests.testing import loops  # noqa: E402
from tests.testing.rank_loops import RIGHT, WRONG, backward, flags, mean  # noqa: E402

LAW = "ranks_are_invisible"


def judged(make):
    (result,) = judge_loop(make, loops.batches(), [LAW])
    return result.outcome, result.text


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loop_is_not_accused(name):
    assert judged(RIGHT[name]) == ("passed", "")


def test_a_loop_of_our_scaler_keeps_all_laws():
    assert {each.outcome for each in check_loop(RIGHT["ours"], loops.batches())} == {"passed"}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loop_is_caught(name, golden):
    make, said = WRONG[name]
    outcome, text = judged(make)
    assert outcome == "failed"
    assert text.startswith(f"{LAW}: ")
    assert said in text.splitlines()[0]
    assert "\n  cause    " in text
    golden(text)


def test_who_waits_is_told_for_whom():
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


NOT_ASKED = {
    "no group": (loops.sgd, "make takes no group: give it a second parameter, make(scaler, group=None)"),
    "one part": (uneven, "on rank 0 split(batch, 2) gave 1 parts, expected one per rank"),
    "raises": (raising, "on rank 0 make raised KeyError: 'LOCAL_RANK' (test_rank_loops.py:"),
    "overflows": (overflowing, "a batch overflows at scale 256"),
}


@pytest.mark.parametrize("name", NOT_ASKED)
def test_what_cannot_be_asked_is_not_accused(name, golden):
    make, why = NOT_ASKED[name]
    outcome, text = judged(make)
    assert (outcome, text[: len(why)]) == ("not applicable", why)
    golden(text)


def test_no_default_group_is_left_behind():
    judged(RIGHT["averaged"])
    assert not torch.distributed.is_initialized()


def test_it_has_no_short_test():
    with pytest.raises(ValueError, match="ranks_are_invisible has no short test: it needs ranks"):
        write(LAW, "loops:make")


def test_a_batch_that_nothing_splits_is_cut_by_its_rows():
    def whole(scaler, group=None):
        loop = RIGHT["averaged"](scaler, group)
        return Loop(loop.step, loop.state)

    assert judged(whole) == ("passed", "")
    (result,) = judge_loop(whole, [tuple(part[:7] for part in batch) for batch in loops.batches()], [LAW])
    assert (result.outcome, "give Loop split=" in result.text) == ("not applicable", True)


def test_a_flag_that_is_reduced_to_one_rank_and_told_to_all_is_right():
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
