"""A right loop keeps every law, and each planted bug is caught by the law that should."""

import pytest

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")

from ampsim.testing import Loop, check_loop  # noqa: E402
from ampsim.testing.loop.judge import LAWS, judge_loop  # noqa: E402
from experiments.bugs.loops import BUGS  # noqa: E402
from tests.testing.loops import RIGHT, Trainer, accumulate, batches, cut, looping, loss_of, parts  # noqa: E402


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loop_is_not_accused(name):
    check_loop(RIGHT[name], batches())


def test_there_are_30_bugs():
    assert len(BUGS) >= 30
    assert {bug.law for bug in BUGS.values()} == {*LAWS} - {"ranks_are_invisible"}  # whose bugs rank_loops has


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_caught_by_its_law(name):
    bug = BUGS[name]
    (result,) = judge_loop(bug.make, batches(), [bug.law])
    assert result.outcome == "failed", f"{bug.law} did not catch {bug.link}: {result}"
    assert result.text.startswith(f"{bug.law}: ")
    assert "\n  cause    " in result.text


def step(t, batch):
    t.optimizer.zero_grad()
    t.scaler.scale(loss_of(t.model, batch) / 64).backward()
    t.update()


def judged(make, law):
    (result,) = judge_loop(make, batches(), [law])
    return result.outcome, result.text


def test_saving_may_not_change_the_scaler():
    def make(scaler):
        t = Trainer(scaler)

        def save():
            scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": 0})
            return t.save()

        return Loop(lambda batch: step(t, batch), t.state, save=save, load=t.load)

    outcome, text = judged(make, "resume_is_invisible")
    assert (outcome, "after saving, after batch" in text) == ("failed", True)


def test_a_loop_whose_scaler_loading_exchanges_is_caught():
    def make(scaler):
        t = Trainer(scaler)

        def load(checkpoint):
            t.load(checkpoint)
            t.scaler = torch.amp.GradScaler("cpu")
            t.scaler.load_state_dict(checkpoint["scaler"])

        return Loop(lambda batch: step(t, batch), t.state, save=t.save, load=load)

    outcome, text = judged(make, "resume_is_invisible")
    assert (outcome, "having loaded" in text) == ("failed", True)


def test_one_parameter_that_stays_is_found_by_its_gradients_however_small():
    def all_but_one(params):
        *others, last = params
        return torch.optim.SGD([{"params": others}, {"params": [last], "lr": 0.0}], lr=0.1)

    outcome, text = judged(looping(step, all_but_one), "it_learns")
    assert (outcome, "did not move, with gradients up to 0.0" in text) == ("failed", True)


def test_who_is_not_stepped_yet_need_not_move():
    def two(t):
        t.optimizer = t.carry("optimizer", torch.optim.SGD(t.model[0].parameters(), lr=0.1))
        t.carry("late", torch.optim.SGD(t.model[2].parameters(), lr=0.1))

    assert judged(looping(step, setup=two), "it_learns") == ("passed", "")


def skips_and_tells_nobody(t, batch):
    t.backward(batch)
    if all(param.grad.isfinite().all() for param in t.params()):
        t.update()


def looks_at_the_first_micro_batch(t, batch):
    t.optimizer.zero_grad()
    seen = []
    for part in parts(batch):
        t.scaler.scale(loss_of(t.model, part) / len(parts(batch))).backward()
        seen.append(all(param.grad.isfinite().all() for param in t.params()))
    for param in t.params() if seen[0] else ():
        param.grad.nan_to_num_(0.0, 0.0, 0.0)
    t.update()


def counts_micro_batches(t, batch):
    t.optimizer.zero_grad()
    accumulate(t, batch)
    t.update()
    t.scaler._growth_tracker += len(parts(batch)) - 1


@pytest.mark.parametrize(
    ("wrong", "law", "said"),
    [
        (skips_and_tells_nobody, "skipped_step_never_happened", "the scale is 256, expected less than 256"),
        (looks_at_the_first_micro_batch, "splitting_is_invisible", "with an inf in micro-batch 1 of 2"),
        (counts_micro_batches, "splitting_is_invisible", "growth_tracker"),
    ],
)
def test_what_no_thread_has_shown_is_caught_too(wrong, law, said):
    outcome, text = judged(looping(wrong, split=cut), law)
    assert (outcome, said in text) == ("failed", True), text
