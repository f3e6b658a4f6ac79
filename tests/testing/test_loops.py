"""A correct loop passes every check, and each seeded fault fails the expected check."""

import pickle

import pytest

torch = pytest.importorskip(
    "torch", reason="pip install -c constraints.txt 'ampsim[torch]'"
)

from torch import nn  # noqa: E402

from ampsim.testing import Loop, LoopError, check_loop, parametrize_with_checks  # noqa: E402
from ampsim.testing.loop.checks import CHECKS  # noqa: E402
from ampsim.testing.loop.judge import judge_loop  # noqa: E402
from experiments.bugs.loops import BUGS  # noqa: E402
from tests.testing.handwritten_scalers import WithHysteresis  # noqa: E402
from tests.testing.loops import (  # noqa: E402
    RIGHT,
    SGD,
    Trainer,
    accumulate,
    batches,
    boxed,
    cut,
    looping,
    loss_of,
    parts,
)


@pytest.mark.parametrize("name", RIGHT)
def test_right_loop_passes(name):
    check_loop(RIGHT[name], batches())


def test_every_check_has_a_bug():
    assert {bug.check for bug in BUGS.values()} == {*CHECKS}


@pytest.mark.parametrize("name", BUGS)
def test_bug_fails_its_check(name):
    bug = BUGS[name]
    outcome, text = judged(bug.make, bug.check)
    assert outcome == "failed", f"{bug.check} did not catch {bug.link}: {text}"
    assert text.startswith(f"{bug.check}: ")


def step(t, batch):
    t.optimizer.zero_grad()
    t.scaler.scale(loss_of(t.model, batch) / 64).backward()
    t.update()


def judged(make, check):
    (result,) = judge_loop(make, batches(), [check])
    return result.outcome, result.text


def test_shared_parameter_is_the_cause():
    def make(scaler):
        t = Trainer(scaler)
        other = t.carry("other", torch.optim.SGD(t.model[0].parameters(), lr=0.01))

        def step(batch):
            t.backward(batch)
            scaler.step(t.optimizer)
            scaler.step(other)
            scaler.update()

        return Loop(step, t.state)

    outcome, text = judged(make, "gradients_do_not_depend_on_loss_scale")
    assert outcome == "failed"
    assert "a parameter is in two optimizers" in text.partition("  cause ")[2]


def test_saving_may_not_change_the_scaler():
    def make(scaler):
        t = Trainer(scaler)

        def save():
            scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": 0})
            return t.save()

        return Loop(lambda batch: step(t, batch), t.state, save=save, load=t.load)

    outcome, text = judged(make, "resume_is_exact")
    assert (outcome, "after save() at batch" in text) == ("failed", True)


def test_loading_may_not_replace_scaler():
    def make(scaler):
        t = Trainer(scaler)

        def load(checkpoint):
            t.load(checkpoint)
            t.scaler = torch.amp.GradScaler("cpu")
            t.scaler.load_state_dict(checkpoint["scaler"])

        return Loop(lambda batch: step(t, batch), t.state, save=t.save, load=load)

    outcome, text = judged(make, "resume_is_exact")
    assert (outcome, "resumed from a checkpoint" in text) == ("failed", True)


def test_one_unchanged_parameter_is_found():
    def all_but_one(params):
        *others, last = params
        return torch.optim.SGD(
            [{"params": others}, {"params": [last], "lr": 0.0}], lr=0.1
        )

    outcome, text = judged(looping(step, all_but_one), "step_changes_parameters")
    assert (outcome, "did not change, with gradients up to 0.0" in text) == (
        "failed",
        True,
    )


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


def by_hand(finite):
    """A step that is taken where a look at the gradients says so."""

    def step(t, batch):
        t.backward(batch)
        t.scaler.unscale_(t.optimizer)
        if finite(t.params()):
            t.optimizer.step()
        t.scaler.update()

    return step


def stops_at_a_bad_scaled_loss(t, batch):
    t.optimizer.zero_grad()
    loss = t.scaler.scale(loss_of(t.model, batch))
    if not loss.isfinite():
        return
    loss.backward()
    t.update()


def hides_one_pass(t, batch):
    """Takes the gradients of two halves, and leaves out one that is not finite."""
    found = []
    for part in cut(batch, 2):
        t.backward(part)
        found.append([param.grad / 2 for param in t.params()])
    kept = [
        grads for grads in found if all(grad.isfinite().all() for grad in grads)
    ] or found
    for param, grads in zip(t.params(), zip(*kept, strict=True), strict=True):
        param.grad = sum(grads)
    t.update()


def steps_at_the_third_skip(t, batch):
    t.backward(batch)
    t.scaler.unscale_(t.optimizer)
    finite = all(param.grad.isfinite().all() for param in t.params())
    t.skips = 0 if finite else vars(t).get("skips", 0) + 1
    if finite or t.skips == 3:
        t.optimizer.step()
    t.scaler.update()


def swallows_the_verdict_of_each_fourth(t, batch):
    t.backward(batch)
    t.scaler.step(t.optimizer)
    t.box.seen += 1
    t.scaler.update(t.scaler.get_scale() if t.box.seen % 4 == 0 else None)


def averages_the_loss(t, batch):
    loss = t.backward(batch)
    t.box.mean = 0.9 * t.box.mean + 0.1 * loss.item()
    t.update()


def clips_two_before_unscaling(t, batch):
    """Steps after every second batch, and clips what is still scaled."""
    if t.box.seen % 2 == 0:
        t.optimizer.zero_grad()
    accumulate(t, batch, 2)
    t.box.seen += 1
    if t.box.seen % 2 == 0:
        nn.utils.clip_grad_norm_(t.params(), 0.1)
        t.update()


def remembers(t, batch):
    """Follows a slow copy of the parameters, which nothing saves."""
    t.backward(batch)
    t.slow = vars(t).get("slow") or [param.detach().clone() for param in t.params()]
    if t.update():
        for slow, param in zip(t.slow, t.params(), strict=True):
            slow.lerp_(param.detach(), 0.5)
            param.data.lerp_(slow, 0.5)


def adds_a_group(t, batch):
    t.backward(batch)
    t.update()
    if len(t.optimizer.param_groups) == 1:
        t.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


SKIP, RESUME = "skipped_step_changes_nothing", "resume_is_exact"
SCOPE = [  # a bug, what it sets up, its check and what is said
    (
        by_hand(lambda params: params[0].grad.isfinite().all()),
        None,
        SKIP,
        "with -inf in one element of model.2.bias",
    ),
    (
        by_hand(lambda params: all(p.grad.max() < 1e9 for p in params)),
        None,
        SKIP,
        "with -inf in one element of",
    ),
    (
        by_hand(lambda params: not any(p.grad.isinf().any() for p in params)),
        None,
        SKIP,
        "with nan in one element of",
    ),
    (
        hides_one_pass,
        None,
        SKIP,
        "with inf in one element of model.0.weight's gradient, backward pass 0",
    ),
    (
        stops_at_a_bad_scaled_loss,
        None,
        SKIP,
        "the scale is 256, expected less than 256, after the skipped",
    ),
    (steps_at_the_third_skip, None, SKIP, "skip 3 in a row"),
    (
        swallows_the_verdict_of_each_fourth,
        boxed(seen=0),
        SKIP,
        "after batch 3, skip 3 in a row",
    ),
    (averages_the_loss, boxed(mean=0.0), SKIP, "box.mean is nan"),
    (
        clips_two_before_unscaling,
        boxed(seen=0),
        "gradients_do_not_depend_on_loss_scale",
        "after batch 1 at scale 256",
    ),
    (remembers, None, RESUME, "resumed from a checkpoint of batch"),
    (adds_a_group, None, RESUME, "load raised ValueError"),
]


@pytest.mark.parametrize(
    ("wrong", "setup", "check", "said"),
    SCOPE,
    ids=lambda each: getattr(each, "__name__", None),
)
def test_each_widened_scope_has_a_bug(wrong, setup, check, said):
    outcome, text = judged(looping(wrong, setup=setup or (lambda t: None)), check)
    assert (outcome, said in text) == ("failed", True), text


def test_check_error_hides_no_finding():
    def make(scaler):
        t = Trainer(scaler)

        def step(batch):
            t.backward(batch)
            nn.utils.clip_grad_norm_(t.params(), 0.1, error_if_nonfinite=True)
            t.update()

        return Loop(step, t.state)

    with pytest.raises(
        AssertionError, match=r"^gradients_do_not_depend_on_loss_scale: "
    ) as caught:
        check_loop(make, batches())
    assert f"\n{SKIP}: step, in batch 2" in str(caught.value)
    assert "micro_batches_equal_one_batch skipped: " in str(caught.value)
    with pytest.raises(LoopError, match=f"^{SKIP}: step, in batch 2"):
        check_loop(make, batches(), [SKIP, "step_changes_parameters"])


def backs_off_twice(t, batch):
    t.optimizer.zero_grad()
    accumulate(t, batch)
    if not t.update():
        t.scaler.update(t.scaler.get_scale() / 2)


@pytest.mark.parametrize(
    ("wrong", "check", "said"),
    [
        (
            backs_off_twice,
            "micro_batches_equal_one_batch",
            "the scale is 64, expected 128",
        ),
        (
            skips_and_tells_nobody,
            "skipped_step_changes_nothing",
            "the scale is 256, expected less than 256",
        ),
        (
            looks_at_the_first_micro_batch,
            "micro_batches_equal_one_batch",
            "with an inf in micro-batch 1 of 2",
        ),
        (counts_micro_batches, "micro_batches_equal_one_batch", "growth_tracker"),
    ],
)
def test_unreported_bug_kinds_are_caught(wrong, check, said):
    outcome, text = judged(looping(wrong, split=cut), check)
    assert (outcome, said in text) == ("failed", True), text


def a_streak_by_hand(scaler):
    """Counts clean steps since the last overflow, as a scaler does, and is told what its scale is."""
    t = Trainer(scaler, SGD)
    clean = t.carry("clean", torch.zeros((), dtype=torch.int64))

    def step(batch):
        t.backward(batch)
        scale = scaler.get_scale()
        grads = [param.grad for param in t.params()]
        torch._foreach_mul_(grads, 1 / scale)
        if all(grad.isfinite().all() for grad in grads):
            t.optimizer.step()
            clean.add_(1)
        else:
            clean.zero_()
            scale /= 2
        scaler.update(scale)

    return Loop(step, t.state)


def test_handwritten_growth_tracker_passes():
    check_loop(a_streak_by_hand, batches())


@pytest.mark.parametrize("lowers", [True, False])
def test_overflow_only_update_is_no_failure(lowers):
    """Who steps by hand, undoes a bad step and lowers the scale then is not accused of never doing
    so.
    """

    def make(scaler):
        t = Trainer(scaler, SGD)

        def step(batch):
            t.backward(batch)
            scale = scaler.get_scale()
            for param in t.params():
                param.grad /= scale
            if all(param.grad.isfinite().all() for param in t.params()):
                t.optimizer.step()
            elif lowers:
                scaler.update(scale / 2)

        return Loop(step, t.state)

    [result] = judge_loop(make, batches(), ["skipped_step_changes_nothing"])
    assert result.outcome == ("passed" if lowers else "failed")


def guarded_by_scale(scaler: WithHysteresis):
    def step(batch):
        t.backward(batch)
        if t.update():
            schedule.step()

    t = Trainer(scaler)
    schedule = t.schedule()
    return Loop(step, t.state)


def guarded_by_report(scaler: WithHysteresis):
    def step(batch):
        t.backward(batch)
        t.update()
        if not scaler.last_step.skipped:
            schedule.step()

    t = Trainer(scaler)
    schedule = t.schedule()
    return Loop(step, t.state)


@pytest.mark.parametrize(
    ("make", "outcome"), [(guarded_by_scale, "failed"), (guarded_by_report, "passed")]
)
def test_loop_runs_with_annotated_scaler(make, outcome):
    found = {each.check.name: each for each in judge_loop(make, batches())}
    skipped = found.pop("skipped_step_changes_nothing")
    assert (skipped.outcome, "scheduler" in skipped.text) == (
        outcome,
        outcome == "failed",
    )
    assert {each.outcome for each in found.values()} <= {"passed", "skipped"}


def test_checkpoint_may_pickle_the_scaler():
    def make(scaler):
        t = Trainer(scaler)

        def save():
            return pickle.dumps(
                (t.model.state_dict(), t.optimizer.state_dict(), scaler)
            )

        def load(checkpoint):
            *states, saved = pickle.loads(checkpoint)  # noqa: S301
            for each, state in zip((t.model, t.optimizer), states, strict=True):
                each.load_state_dict(state)
            scaler.load_state_dict(saved.state_dict())

        return Loop(lambda batch: step(t, batch), t.state, save=save, load=load)

    assert judged(make, "resume_is_exact")[0] == "passed"


def test_hysteresis_hides_no_missed_inf():
    def make(scaler: WithHysteresis):
        return looping(looks_at_the_first_micro_batch, split=cut)(scaler)

    outcome, text = judged(make, "micro_batches_equal_one_batch")
    assert (outcome, "expected 256 and an overflow" in text) == ("failed", True)


def test_raising_check_is_no_skip():
    def make(scaler):
        t = Trainer(scaler)

        def step(batch):
            if scaler.get_scale() == 1.0:
                raise ValueError("no scale")
            t.backward(batch)
            t.update()

        return Loop(step, t.state)

    parametrized = parametrize_with_checks(
        [make], batches(), checks=["gradients_do_not_depend_on_loss_scale"]
    )
    [(function, check)] = [case.values for case in parametrized.args[1]]
    with pytest.raises((LoopError, pytest.skip.Exception), match="no scale") as caught:
        check(function)
    assert caught.type is LoopError


def test_nan_state_equals_itself():
    def step(t, batch):
        t.backward(batch)
        t.update()

    check_loop(looping(step, setup=boxed(largest=torch.tensor(torch.nan))), batches())
