"""Each check of scalers has been seen to fail: a planted bug for each, and the check that names it."""

import contextlib
from pathlib import Path

import pytest

torch = pytest.importorskip(
    "torch", reason="pip install -c constraints.txt 'ampsim[torch]'"
)

from ampsim import State, init, update  # noqa: E402
from ampsim.testing import FoundInfAdapter, Subject, Traits, known_failures  # noqa: E402
from ampsim.testing.construction import CONSTANTS  # noqa: E402
from ampsim.testing.scaler_checks import run as judge  # noqa: E402
from tests.testing.handwritten_scalers import WRONG, FiniteBySum, Stranger  # noqa: E402

TorchScaler, OptState = torch.amp.GradScaler, torch.amp.grad_scaler.OptState
torch.set_num_threads(1)


# -------------------------------------------------------------------- bugs of a state machine alone


def flagged(change, **traits):
    """A scaler around the reference machine whose state after each update is `change`d."""

    def make(requested):
        rule = subject.traits.follows(requested)
        states = [init(rule)]

        def update_scale(found_inf):
            states.append(
                change(rule, states[-1], found_inf, update(rule, states[-1], found_inf))
            )

        return FoundInfAdapter(lambda: states[-1].scale, update_scale)

    subject = Subject(
        make, Traits(unsupported=FoundInfAdapter.unsupported, **traits), change.__name__
    )
    return subject


def ignores_its_floor(rule, before, flag, after):
    return update(rule.replace(min_scale=None), before, flag)


def never_backs_off(rule, before, flag, after):
    return State(before.scale, after.growth_tracker) if flag else after


def decays_when_clean(rule, before, flag, after):
    return after if flag else State(after.scale * 0.99, after.growth_tracker)


def stays_below_halfs_largest(rule, before, flag, after):
    return State(min(after.scale, max(65504.0, rule.init_scale)), after.growth_tracker)


def is_never_lowered_from_far(rule, before, flag, after):
    return before if flag and before.scale > 2.0**100 else after


def goes_past_its_floor_once(rule, before, flag, after):
    return (
        ignores_its_floor(rule, before, flag, after)
        if before.scale > rule.min_scale
        else after
    )


def adds_up_overflows_that_are_apart(rule, before, flag, after):
    return update(rule.replace(hysteresis_reset=frozenset({"growth"})), before, flag)


# ------------------------------------------------------------- bugs of torch's own, one change each


class Torchs(TorchScaler):
    """torch's scaler, for bugs that its update would have."""

    def found(self):
        states = self._per_optimizer_states.values()
        flags = [
            flag for state in states for flag in state["found_inf_per_device"].values()
        ]
        return any(flag.item() for flag in flags) if flags else None

    @contextlib.contextmanager
    def with_constants(self, **constants):
        before = {name: getattr(self, name) for name in constants}
        vars(self).update(constants)
        yield
        vars(self).update(before)


class GrowsOneLate(Torchs):
    def update(self, new_scale=None):
        with self.with_constants(_growth_interval=self._growth_interval + 1):
            super().update(new_scale)


class KeepsTheStreakOnOverflow(Torchs):
    def update(self, new_scale=None):
        streak = (
            self._growth_tracker.clone() if new_scale is None and self.found() else None
        )
        super().update(new_scale)
        if streak is not None:
            self._growth_tracker.copy_(streak)


class RoundsFactorsFirst(Torchs):
    def update(self, new_scale=None):
        rounded = torch.tensor([self._growth_factor, self._backoff_factor]).tolist()
        with self.with_constants(_growth_factor=rounded[0], _backoff_factor=rounded[1]):
            super().update(new_scale)


class UpdatesWithoutAnyCheck(Torchs):
    def update(self, new_scale=None):
        if new_scale is not None or self._scale is None or self.found() is not None:
            super().update(new_scale)


class HoldsTheScaleInFloat64(TorchScaler):
    def _lazy_init_scale_growth_tracker(self, dev):
        super()._lazy_init_scale_growth_tracker(dev)
        self._scale = self._scale.double().fill_(self._init_scale)


class KeepsStagesOnOverride(TorchScaler):
    def update(self, new_scale=None):
        states = self._per_optimizer_states
        super().update(new_scale)
        if new_scale is not None:
            self._per_optimizer_states = states


class UnscalesByDividing(TorchScaler):
    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        found = super()._unscale_grads_(
            optimizer, torch.ones_like(inv_scale), found_inf, allow_fp16
        )
        for param in optimizer.param_groups[0]["params"]:
            if param.grad is not None and not allow_fp16:
                param.grad.div_(self._scale)
        return found


class UnscalesTwice(TorchScaler):
    def unscale_(self, optimizer):
        state = self._per_optimizer_states.get(id(optimizer))
        if state is not None and state["stage"] is OptState.UNSCALED:
            state["stage"] = OptState.READY
        super().unscale_(optimizer)


class StepsTwice(TorchScaler):
    def step(self, optimizer, *args, **kwargs):
        state = self._per_optimizer_states.get(id(optimizer))
        if state is not None and state["stage"] is OptState.STEPPED:
            state["stage"] = OptState.UNSCALED
        return super().step(optimizer, *args, **kwargs)


class StepsAlthoughItOverflowed(TorchScaler):
    def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
        return optimizer.step(*args, **kwargs)


class FusedStepsAlthoughItOverflowed(TorchScaler):
    def _check_inf_per_device(self, optimizer):
        found = super()._check_inf_per_device(optimizer)
        hook = optimizer.register_step_pre_hook(
            lambda it, *_: setattr(it, "found_inf", torch.tensor(0.0))
        )
        optimizer.register_step_post_hook(lambda *_: hook.remove())
        return found


class RoundsTheScaleForTheLoss(TorchScaler):
    def scale(self, outputs):
        super().scale(outputs)
        return outputs * self._scale.bfloat16().float()


# ------------------------------------------------------------------------ bugs of what is around it


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
        if self._per_optimizer_states[id(optimizer)]["stage"] is not OptState.STEPPED:
            super().unscale_(optimizer)


class HasItsScaleAtOnce(TorchScaler):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._lazy_init_scale_growth_tracker(torch.device("cpu"))


class StepsWithoutGradients(TorchScaler):
    def step(self, optimizer, *args, **kwargs):
        if self._scale is not None and all(
            p.grad is None for p in optimizer.param_groups[0]["params"]
        ):
            return None
        return super().step(optimizer, *args, **kwargs)


class ScalesNumbers(TorchScaler):
    def scale(self, outputs):
        return (
            outputs * self.get_scale()
            if isinstance(outputs, float)
            else super().scale(outputs)
        )


class TakesAnyFactor(TorchScaler):
    def __init__(
        self, device, init_scale, growth_factor, backoff_factor, growth_interval
    ):
        super().__init__(device, init_scale, growth_interval=growth_interval)
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor


class RefusesFactorsInItsOwnWords(TorchScaler):
    def __init__(
        self, device, init_scale, growth_factor, backoff_factor, growth_interval
    ):
        if not backoff_factor < 1 < growth_factor:
            raise ValueError("no such factors")
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval
        )


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
            self._per_optimizer_states[id(optimizer)]["stage"] = OptState.READY
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
        kept = (
            {}
            if self._scale is not None
            else {name: self.state_dict()[name] for name in CONSTANTS[1:]}
        )
        super().load_state_dict({**state_dict, **kept})


class SavesAnObject(TorchScaler):
    def state_dict(self):
        return {**super().state_dict(), "saved_by": Path()}


class SavesNothing(Stranger):
    state_dict = property()


class SavesHalfOfALateBackoff(Torchs):
    """Backs off at the second overflow in a row; a state dict may be of half an update."""

    overflows = 0

    def update(self, new_scale=None):
        found = self.found()
        self.overflows = self.overflows + 1 if found else 0
        if found and self.overflows < 2:
            with self.with_constants(_backoff_factor=1.0):
                super().update(new_scale)
            return
        super().update(new_scale)
        self.overflows = 0


class TicketsThatSayNothing(TorchScaler):
    def begin_iteration(self):
        return None

    def scale(self, outputs, ticket):
        return super().scale(outputs)

    def step(self, optimizer, ticket):
        return super().step(optimizer)

    def update(self, ticket):
        super().update()


# check -> the planted bugs that it names, where no stranger's small change is named by it.
# What torch itself fails is in `known_failures.TORCH`, and test_scaler_checks.py sees it fail.
KILLS = {
    "growth_waits_for_interval": [
        KeepsTheStreakOnOverflow,
        GrowsOneLate,
        SharesItsStreak,
    ],
    "scale_stays_within_bounds": [
        flagged(change, min_scale=1.0)
        for change in (ignores_its_floor, goes_past_its_floor_once)
    ],
    "skips_stay_within_budget": [flagged(never_backs_off)],
    "scale_recovers_after_overflows": [
        flagged(is_never_lowered_from_far, min_scale=2.0**-100)
    ],
    "finite_step_never_lowers_scale": [flagged(decays_when_clean)],
    "get_scale_matches_scale": [RoundsTheScaleForTheLoss],
    "loss_is_multiplied_by_scale": [RoundsTheScaleForTheLoss],
    "misuse_raises": [StepsWithoutGradients, ScalesNumbers],
    "neutral_factors_raise": [
        TakesAnyFactor,
        Subject(RefusesFactorsInItsOwnWords, Traits(drop_in=True)),
    ],
    "call_sequences_match_torch": [
        KeepsStagesOnOverride,
        Subject(UnscalesByDividing, Traits(drop_in=True)),
        UnscalesTwice,
        UnscalesAfterStep,
        StepsTwice,
        UpdatesWithoutAnyCheck,
        Subject(HasItsScaleAtOnce, Traits(drop_in=True)),
    ],
    "overflow_in_any_micro_batch_skips": [StartsTheGradientAnew, ForgetsABadMicroBatch],
    "state_dict_continues_run": [LoadsOnlyIfUsed, LoadsItsConstantsOnlyIfUsed],
    "state_dict_is_snapshot": [SavesAnObject],
    "no_step_on_nonfinite_gradients": [
        FusedStepsAlthoughItOverflowed,
        StepsAlthoughItOverflowed,
    ],
    "scale_stays_power_of_two": [flagged(stays_below_halfs_largest)],
    "minimum_scale_error_repeats": [
        Subject(
            GivesUpInAnotherWay,
            Traits(min_scale=2.0**-100, gives_up=(FloatingPointError,)),
        )
    ],
    "scale_is_exact_float32": [
        Subject(each, Traits(drop_in=True))
        for each in (RoundsFactorsFirst, HoldsTheScaleInFloat64)
    ]
    + [
        flagged(
            adds_up_overflows_that_are_apart, hysteresis=2, hysteresis_reset="clean"
        )
    ],
    "finite_gradients_never_skip": [FiniteBySum],
    "fused_matches_unfused": [
        FusedStepsAlthoughItOverflowed,
        DividesWhatIsUnscaledInAFusedStep,
    ],
    "fused_step_respects_strides": [RefusesGapsInGradients],
    "missing_features_are_declared": [SavesNothing],
    "queued_gradients_keep_their_scale": [TicketsThatSayNothing],
    "state_dict_is_atomic": [
        Subject(SavesHalfOfALateBackoff, Traits(hysteresis=2, hysteresis_reset="clean"))
    ],
}
CHECKS = {check.name: check for check in judge.chosen()}


BUGS = [(name, scaler) for name, bugs in KILLS.items() for scaler in bugs]


@pytest.mark.parametrize(
    ("name", "scaler"),
    [*BUGS, *((name, scaler) for scaler, name in WRONG.items())],
    ids=lambda each: getattr(each, "name", None),  # of a Subject; a class has its own
)
@pytest.mark.usefixtures("brief")
def test_bug_fails_its_check(name, scaler, monkeypatch):
    monkeypatch.setattr(SharesItsStreak, "streak", 0)  # whichever tests came before
    with pytest.raises(AssertionError, match=f"^{name}: ") as failure:
        CHECKS[name](scaler)
    assert CHECKS[name].statement in str(failure.value)
    assert CHECKS[name].issue in str(failure.value)


def test_every_check_can_fail():
    assert {*KILLS, *known_failures.TORCH, *WRONG.values()} == set(CHECKS)
