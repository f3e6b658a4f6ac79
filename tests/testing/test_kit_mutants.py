"""Every check of the kit has been seen to fail: a planted bug for each, and the check that names it."""

from pathlib import Path

import pytest
from hypothesis import Phase, settings

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")

from ampsim import State, init, update  # noqa: E402
from ampsim.testing import FromFlag, Subject, Traits, examples, known  # noqa: E402
from ampsim.testing.kit import check, judge  # noqa: E402
from ampsim.testing.kit.subject import CONSTANTS  # noqa: E402
from tests.core.test_laws import decays_when_clean, never_backs_off  # noqa: E402
from tests.golden import without_law  # noqa: E402
from tests.testing.strangers import WRONG, FiniteBySum, Stranger  # noqa: E402
from tests.torch import test_mutants as theirs  # noqa: E402

TorchScaler = torch.amp.GradScaler


# ---------------------------------------------------------------------------- bugs of a state machine alone


def flagged(change, **traits):
    """A scaler around the reference machine whose state after each update is `change`d."""

    def make(requested):
        rule = subject.traits.follows(requested)
        states = [init(rule)]

        def update_scale(found_inf):
            states.append(change(rule, states[-1], found_inf, update(rule, states[-1], found_inf)))

        return FromFlag(lambda: states[-1].scale, update_scale)

    subject = Subject(make, Traits(without=FromFlag.without, **traits), change.__name__)
    return subject


def no_bug(rule, before, flag, after):
    return after


def ignores_its_floor(rule, before, flag, after):
    return update(rule.replace(min_scale=None), before, flag)


def stays_below_halfs_largest(rule, before, flag, after):
    return State(min(after.scale, max(65504.0, rule.init_scale)), after.growth_tracker)


def is_never_lowered_from_far(rule, before, flag, after):
    return before if flag and before.scale > 2.0**100 else after


def goes_past_its_floor_once(rule, before, flag, after):
    return ignores_its_floor(rule, before, flag, after) if before.scale > rule.min_scale else after


def adds_up_overflows_that_are_apart(rule, before, flag, after):
    return update(rule.replace(hysteresis_refill=frozenset({"growth"})), before, flag)


# -------------------------------------------------------------------------------- bugs of what is around it


class GivesUpInAnotherWay(TorchScaler):
    raises = (FloatingPointError,)

    def update(self, new_scale=None):
        if self.get_scale() <= 2.0**-100:
            (kind,), self.raises = self.raises, (ZeroDivisionError,)
            raise kind
        super().update(new_scale)


class SharesItsStreak(Stranger):
    streak = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.now = (self.now[0], min(type(self).streak, self.interval - 1))

    def advance(self, found):
        super().advance(found)
        type(self).streak = self.now[1]


class UnscalesAfterStep(TorchScaler):
    def unscale_(self, optimizer):
        if self._per_optimizer_states[id(optimizer)]["stage"].value != 2:
            super().unscale_(optimizer)


class HasItsScaleAtOnce(TorchScaler):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._lazy_init_scale_growth_tracker(torch.device("cpu"))


class StepsWithoutGradients(TorchScaler):
    def step(self, optimizer, *args, **kwargs):
        if self._scale is not None and all(p.grad is None for p in optimizer.param_groups[0]["params"]):
            return None
        return super().step(optimizer, *args, **kwargs)


class ScalesNumbers(TorchScaler):
    def scale(self, outputs):
        return outputs * self.get_scale() if isinstance(outputs, float) else super().scale(outputs)


class TakesAnyFactor(TorchScaler):
    def __init__(self, device, init_scale, growth_factor, backoff_factor, growth_interval):
        super().__init__(device, init_scale, growth_interval=growth_interval)
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor


class RefusesFactorsInItsOwnWords(TorchScaler):
    def __init__(self, device, init_scale, growth_factor, backoff_factor, growth_interval):
        if not backoff_factor < 1 < growth_factor:
            raise ValueError("no such factors")
        super().__init__(device, init_scale, growth_factor, backoff_factor, growth_interval)


class StartsTheGradientAnew(TorchScaler):
    """Each micro-batch's gradient takes the place of the one before."""

    def scale(self, outputs):
        scaled = super().scale(outputs)
        for leaf in _leaves(scaled.grad_fn):
            leaf.grad = None if self.forgets(leaf.grad) else leaf.grad
        return scaled

    def forgets(self, grad):
        return True


class ForgetsABadMicroBatch(StartsTheGradientAnew):
    def forgets(self, grad):
        return grad is not None and not grad.isfinite().all()


def _leaves(node):
    if node is None:
        return []
    if hasattr(node, "variable"):
        return [node.variable]
    return [leaf for inner, _ in node.next_functions for leaf in _leaves(inner)]


class DividesWhatIsUnscaledInAFusedStep(TorchScaler):
    def step(self, optimizer, *args, **kwargs):
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            self._per_optimizer_states[id(optimizer)]["stage"] = torch.amp.grad_scaler.OptState.READY
        return super().step(optimizer, *args, **kwargs)


class RefusesGapsInGradients(TorchScaler):
    def step(self, optimizer, *args, **kwargs):
        for param in optimizer.param_groups[0]["params"]:
            if param.grad.untyped_storage().nbytes() > param.grad.nbytes:
                raise RuntimeError("a gradient with gaps")
        return super().step(optimizer, *args, **kwargs)


class LoadsOnlyIfUsed(TorchScaler):
    def load_state_dict(self, state_dict):
        if self._scale is not None:
            super().load_state_dict(state_dict)


class LoadsItsConstantsOnlyIfUsed(TorchScaler):
    def load_state_dict(self, state_dict):
        kept = {} if self._scale is not None else {name: self.state_dict()[name] for name in CONSTANTS[1:]}
        super().load_state_dict({**state_dict, **kept})


class SavesAnObject(TorchScaler):
    def state_dict(self):
        return {**super().state_dict(), "saved_by": Path()}


class TicketsThatSayNothing(TorchScaler):
    def begin(self):
        return None

    def scale(self, outputs, ticket):
        return super().scale(outputs)

    def step(self, optimizer, ticket):
        return super().step(optimizer)

    def update(self, ticket):
        super().update()


# check -> the planted bugs that it names, where no stranger's small change is named by it.
# What torch itself fails is in `known.TORCH`, and test_kit.py sees it fail.
KILLS = {
    "overflow_restarts_the_streak": [theirs.KeepsTheStreakOnOverflow],
    "clean_step_counts_once": [theirs.GrowsOneLate],
    "scale_stays_within_bounds": [flagged(ignores_its_floor, min_scale=1.0)],
    "skip_budget": [flagged(never_backs_off)],
    "scale_comes_back": [flagged(is_never_lowered_from_far, min_scale=2.0**-100)],
    "descends_only_by_skipping": [flagged(decays_when_clean)],
    "get_scale_is_what_scale_multiplies_by": [theirs.RoundsTheScaleForTheLoss],
    "scale_is_exact_float32": [
        Subject(each, Traits(drop_in=True)) for each in (theirs.RoundsFactorsFirst, theirs.HoldsTheScaleInFloat64)
    ],
    "loss_is_multiplied_by_the_scale": [theirs.RoundsTheScaleForTheLoss],
    "unscaling_twice_is_refused": [theirs.UnscalesTwice],
    "unscaling_after_step_is_refused": [UnscalesAfterStep],
    "stepping_twice_is_refused": [theirs.StepsTwice],
    "calls_before_the_first_scale_are_refused": [HasItsScaleAtOnce],
    "a_step_without_gradients_is_refused": [StepsWithoutGradients],
    "an_update_without_a_step_is_refused": [theirs.UpdatesWithoutAnyCheck],
    "what_is_no_loss_is_refused": [ScalesNumbers],
    "factors_that_do_not_move_the_scale_are_refused": [
        TakesAnyFactor,
        Subject(RefusesFactorsInItsOwnWords, Traits(drop_in=True)),
    ],
    "any_calls_do_what_torchs_do": [
        theirs.KeepsStagesOnOverride,
        Subject(theirs.UnscalesByDividing, Traits(drop_in=True)),
        theirs.UnscalesTwice,
        theirs.StepsTwice,
    ],
    "overflow_in_any_micro_batch_skips": [StartsTheGradientAnew, ForgetsABadMicroBatch],
    "resume_before_first_use_is_invisible": [LoadsOnlyIfUsed, LoadsItsConstantsOnlyIfUsed],
    "a_state_dict_loads_without_running_code": [SavesAnObject],
    "never_steps_on_nonfinite": [theirs.FusedStepsAlthoughItOverflowed, theirs.StepsAlthoughItOverflowed],
    "powers_of_two_stay_powers_of_two": [flagged(stays_below_halfs_largest)],
    "new_scaler_is_fresh": [SharesItsStreak],
    "giving_up_is_said_again": [
        Subject(GivesUpInAnotherWay, Traits(min_scale=2.0**-100, gives_up=(FloatingPointError,)))
    ],
    "overflows_apart_are_not_added_up": [
        flagged(adds_up_overflows_that_are_apart, hysteresis=2, hysteresis_refill="clean")
    ],
    "overflows_end_at_the_minimum": [flagged(goes_past_its_floor_once, min_scale=1.0)],
    "finite_gradients_are_never_skipped": [FiniteBySum],
    "fused_agrees_with_unfused": [theirs.FusedStepsAlthoughItOverflowed, DividesWhatIsUnscaledInAFusedStep],
    "fused_steps_follow_strides": [RefusesGapsInGradients],
    "gradients_keep_their_scale_behind_a_queue": [TicketsThatSayNothing],
}
CHECKS = {check.name: check for check in judge.chosen()}


@pytest.mark.parametrize(
    ("name", "scaler"),
    [*((check, scaler) for check, bugs in KILLS.items() for scaler in bugs), *((WRONG[each], each) for each in WRONG)],
    ids=lambda each: getattr(each, "name", None),  # of a Subject; a class has its own
)
def test_a_planted_bug_dies_by_the_check_it_breaks(name, scaler, monkeypatch, golden):
    # No shrinking, and no search for what would excuse it, which take half the time: asserted is which check fails.
    monkeypatch.setattr(check, "choice", lambda *_: [])
    monkeypatch.setattr(SharesItsStreak, "streak", 0)  # whichever tests came before
    monkeypatch.setattr(examples, "SETTINGS", settings(examples.SETTINGS, phases=[Phase.generate]))
    with pytest.raises(AssertionError) as failure:
        CHECKS[name](scaler)
    text = str(failure.value)
    assert text.startswith(f"{name}: ")
    assert f"\n  law      {CHECKS[name].law}" in text
    assert CHECKS[name].issue in text
    golden("\n".join(line[:300] for line in without_law(text).splitlines()))


def test_every_check_has_been_seen_to_fail():
    assert {*KILLS, *known.TORCH, *WRONG.values()} == set(CHECKS)


def test_without_a_bug_nothing_dies():
    results = judge.check_scaler(flagged(no_bug, min_scale=2.0**-100), examples=10)
    assert {result.outcome for result in results} == {"passed", "not applicable"}
    assert sum(result.outcome == "passed" for result in results) > 25
