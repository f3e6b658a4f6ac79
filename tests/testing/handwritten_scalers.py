"""A loss scaler that owes torch's neither a text nor a line, and wrong ones, each a small change of
it.
"""

import math
from types import SimpleNamespace

import numpy as np
import torch


class MisuseError(Exception):
    """All that it ever says no with."""


def float32(x):
    with np.errstate(over="ignore"):
        return float(np.float32(x))


class Stranger:
    """Right, in its own words. Its scale and streak are one tuple, so that no thread sees half of
    an update.
    """

    supported = frozenset({"float16", "misuse_errors", "threads"})

    def __init__(
        self,
        init_scale=2.0**16,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
        enabled=True,
    ):
        if not (
            0 < init_scale < math.inf
            and growth_factor > 1 > backoff_factor > 0
            and growth_interval >= 1
        ):
            raise MisuseError("these constants make no sense")
        self.now = (float32(init_scale), 0)
        self.up, self.down, self.interval, self.on = (
            growth_factor,
            backoff_factor,
            growth_interval,
            enabled,
        )
        self.used = None  # what the last loss was multiplied by
        self.seen = {}  # id -> the optimizer, which stays alive, and what is known of it
        self.last_step = None

    # -------------------------------------------------------------------------------------------
    # the state machine

    def advance(self, found):
        scale, streak = self.now
        if found:
            self.now = (self.lowered(scale), 0)
        elif self.is_due(streak + 1):
            self.now = (self.raised(scale), 0)
        else:
            self.now = (scale, streak + 1)

    def is_due(self, streak):
        return streak >= self.interval

    def lowered(self, scale):
        return max(float32(scale * self.down), 2.0**-126)

    def raised(self, scale):
        grown = float32(scale * self.up)
        return grown if grown < math.inf else scale

    # -----------------------------------------------------------------------------------------------
    # the gradients

    def params(self, optimizer):
        return [
            p
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]

    def divisor(self):
        return self.used

    def divided(self, grad, scale):
        return grad / scale

    def is_bad(self, grad):
        return not bool(
            (grad.coalesce().values() if grad.is_sparse else grad).isfinite().all()
        )

    def overflows(self, params):
        return any(self.is_bad(param.grad) for param in params)

    def refuse_float16(self, params):
        if any(param.grad.dtype == torch.float16 for param in params):
            raise MisuseError("half gradients")

    def find(self, optimizer):
        """Divide all gradients of an optimizer, and say whether one was or is not finite."""
        params = self.params(optimizer)
        self.refuse_float16(params)
        found = self.overflows(params)
        known = {id(param) for param in self.divided_before(optimizer)}
        for param in (param for param in params if id(param) not in known):
            grad = self.divided(param.grad, self.divisor())
            param.grad = grad if grad.is_sparse else param.grad.copy_(grad)
        return found or self.overflows(params)

    def divided_before(self, optimizer):
        """Return the parameters that another optimizer of this iteration has, and that are divided."""
        others = [
            each.optimizer for each in self.seen.values() if each.found is not None
        ]
        return [
            param
            for other in others
            if other is not optimizer
            for param in self.params(other)
        ]

    # ---------------------------------------------------------------------------------------------------
    # the calls

    def scale(self, outputs):
        if not self.on:
            return outputs
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(map(self.scale, outputs))
        if not isinstance(outputs, torch.Tensor):
            raise MisuseError("that is no loss")
        self.used = self.now[0]
        return outputs * torch.tensor(self.used)

    def entry(self, optimizer):
        if self.used is None:
            raise MisuseError("no loss was scaled")
        return self.seen.setdefault(
            id(optimizer),
            SimpleNamespace(optimizer=optimizer, found=None, stepped=False),
        )

    def unscale_(self, optimizer):
        if not self.on:
            return
        entry = self.entry(optimizer)
        if entry.stepped or entry.found is not None:
            raise MisuseError("once is enough")
        if self.params(optimizer):
            entry.found = self.find(optimizer)

    def step(self, optimizer, *args, **kwargs):
        if not self.on:
            return optimizer.step(*args, **kwargs)
        self.refuse_closures(args, kwargs)
        entry = self.entry(optimizer)
        if entry.stepped:
            raise MisuseError("it has stepped")
        if entry.found is None:
            self.unscale_(optimizer)
        if entry.found is None:
            raise MisuseError("no gradient came")
        entry.found = entry.found or self.overflows(
            self.params(optimizer)
        )  # written since unscale_
        entry.stepped, self.last_step = True, SimpleNamespace(skipped=entry.found)
        return self.skip(optimizer) if entry.found else self.take(optimizer)

    def refuse_closures(self, args, kwargs):
        if args or "closure" in kwargs:
            raise MisuseError("closures compute what nobody checked")

    def skip(self, optimizer):
        return None

    def take(self, optimizer):
        return optimizer.step()

    def update(self, new_scale=None):
        if not self.on:
            return
        if self.used is None or (
            new_scale is None
            and not any(e.found is not None for e in self.seen.values())
        ):
            raise MisuseError("nothing happened")
        if new_scale is None:
            self.advance(self.found_in(self.seen.values()))
        else:
            self.override(new_scale)
        self.seen = {}

    def found_in(self, entries):
        return any(entry.found for entry in entries)

    def override(self, new_scale):
        self.now = (float32(new_scale), self.now[1])

    # ------------------------------------------------------------------- what is read, set and kept

    def get_scale(self):
        return self.now[0] if self.on else 1.0

    def get_growth_factor(self):
        return self.up

    def set_growth_factor(self, value):
        self.up = value

    def get_backoff_factor(self):
        return self.down

    def set_backoff_factor(self, value):
        self.down = value

    def get_growth_interval(self):
        return self.interval

    def set_growth_interval(self, value):
        self.interval = value

    def state_dict(self):
        scale, streak = self.now
        return {
            "S": scale,
            "n": streak,
            "up": self.up,
            "down": self.down,
            "every": self.interval,
        }

    def load_state_dict(self, saved):
        self.now = (saved["S"], saved["n"])
        self.up, self.down, self.interval = saved["up"], saved["down"], saved["every"]


class WithHysteresis(Stranger):
    """Right, too. It backs off at every second overflow in a row."""

    overflows_in_a_row = 0

    def advance(self, found):
        self.overflows_in_a_row = self.overflows_in_a_row % 2 + 1 if found else 0
        if self.overflows_in_a_row == 1:
            self.now = (self.now[0], 0)
        else:
            super().advance(found)

    def state_dict(self):
        return {**super().state_dict(), "in_a_row": self.overflows_in_a_row}

    def load_state_dict(self, saved):
        super().load_state_dict(saved)
        self.overflows_in_a_row = saved["in_a_row"]


# ------------------------------------------------------------------------- wrong: the state machine


class KeepsTheStreak(Stranger):
    def advance(self, found):
        streak = self.now[1]
        super().advance(found)
        if found:
            self.now = (self.now[0], streak)


class HasAFloorOfOne(Stranger):
    def lowered(self, scale):
        return max(super().lowered(scale), 1.0)


class HasMaxScale(Stranger):
    def raised(self, scale):
        return min(super().raised(scale), 2.0**16)


class BacksOffEverySecondTime(Stranger):
    patience = 0

    def lowered(self, scale):
        self.patience = 1 - self.patience
        return scale if self.patience else super().lowered(scale)


class ComparesByEquality(Stranger):
    def is_due(self, streak):
        return streak == self.interval


class GrowsOnOverflow(Stranger):
    def lowered(self, scale):
        return self.raised(scale)


class GrowsToInf(Stranger):
    def raised(self, scale):
        return float32(scale * self.up)


class BacksOffTwice(Stranger):
    def lowered(self, scale):
        return super().lowered(super().lowered(scale))


class GrowsByTheInverseOfBackoff(Stranger):
    def raised(self, scale):
        grown = float32(scale / self.down)
        return grown if grown < math.inf else scale


class DecaysWhenClean(Stranger):
    def advance(self, found):
        super().advance(found)
        if not found:
            self.now = (float32(self.now[0] * 0.999), self.now[1])


class CountsMicroBatches(Stranger):
    def scale(self, outputs):
        if self.used is not None and isinstance(outputs, torch.Tensor):
            self.losses = getattr(self, "losses", 0) + 1
        return super().scale(outputs)

    def advance(self, found):
        losses, self.losses = getattr(self, "losses", 1), 0
        self.now = (self.now[0], self.now[1] + max(losses - 1, 0))
        super().advance(found)


# ----------------------------------------------------------------------------- wrong: what is found


class ChecksTheFirstGroup(Stranger):
    def overflows(self, params):
        owner = next(
            entry.optimizer for entry in self.seen.values() if entry.found is None
        )
        return super().overflows(
            [p for p in owner.param_groups[0]["params"] if p.grad is not None]
        )


class IgnoresNaN(Stranger):
    def is_bad(self, grad):
        return bool((grad.to_dense() if grad.is_sparse else grad).isinf().any())


class IgnoresNegativeInf(Stranger):
    def is_bad(self, grad):
        grad = grad.to_dense() if grad.is_sparse else grad
        return bool((grad.isnan() | grad.isposinf()).any())


class LastDtypeWins(Stranger):
    def overflows(self, params):
        flags = {}
        for param in params:
            flags[param.dtype] = flags.get(param.dtype, False) or self.is_bad(
                param.grad
            )
        return [*flags.values()][-1]


class FiniteBySum(Stranger):
    def is_bad(self, grad):
        return not math.isfinite((grad.to_dense() if grad.is_sparse else grad).sum())


class ChecksOneSparseGradient(Stranger):
    def overflows(self, params):
        first, *_ = [param for param in params if param.grad.is_sparse] or [None]
        return super().overflows(
            [param for param in params if param is first or not param.grad.is_sparse]
        )


class ForgetsWhatWasNotStepped(Stranger):
    def found_in(self, entries):
        return any(entry.found and entry.stepped for entry in entries)


class BacksOffPerOptimizer(Stranger):
    def advance(self, found):
        for _ in range(max(1, sum(bool(entry.found) for entry in self.seen.values()))):
            super().advance(found)


# ---------------------------------------------------------------------------- wrong: the arithmetic


class DividesByTheNextScale(Stranger):
    def divisor(self):
        return self.raised(self.used) if self.is_due(self.now[1] + 1) else self.used


class AllowsFloat16(Stranger):
    def refuse_float16(self, params):
        pass


class DividesThroughFloat16(Stranger):
    def divided(self, grad, scale):
        return grad.half().to(grad.dtype) / scale


class FlushesSubnormals(Stranger):
    def divided(self, grad, scale):
        grad = grad / scale
        return (
            grad if grad.is_sparse else torch.where(grad.abs() < 2.0**-126, 0.0, grad)
        )


class UnscalesByTheScaleOfTheMoment(Stranger):
    """Its step knows what the loss was multiplied by, and its unscale_ does not."""

    stepping = False

    def step(self, optimizer, *args, **kwargs):
        self.stepping = True
        value = super().step(optimizer, *args, **kwargs)
        self.stepping = False
        return value

    def divisor(self):
        return self.used if self.stepping else self.now[0]


class DividesTwice(Stranger):
    def take(self, optimizer):
        for param in self.params(optimizer):
            param.grad = self.divided(param.grad, self.divisor())
        return super().take(optimizer)


# --------------------------------------------------------------------------------------------
# wrong: the calls


class SkipAdvancesTheOptimizer(Stranger):
    def skip(self, optimizer):
        for param in self.params(optimizer):
            param.grad = torch.zeros_like(param)
        optimizer.step()


class UpdatesAtTheFirstStep(Stranger):
    def step(self, optimizer, *args, **kwargs):
        first = not any(entry.stepped for entry in self.seen.values())
        value = super().step(optimizer, *args, **kwargs)
        if first and self.on:
            self.advanced = True
            super().advance(self.last_step.skipped)
            self.used = self.now[0]
        return value

    def advance(self, found):
        if not self.__dict__.pop("advanced", False):
            super().advance(found)


class ScalesAlthoughDisabled(Stranger):
    def scale(self, outputs):
        return (
            super().scale(outputs) if self.on else outputs * torch.tensor(self.now[0])
        )


class StepsByWhatIsFinite(Stranger):
    def skip(self, optimizer):
        for param in self.params(optimizer):
            param.grad.nan_to_num_(0.0, 0.0, 0.0)
        return optimizer.step()


class DividesBeforeItRefuses(Stranger):
    def unscale_(self, optimizer):
        if self.on and self.entry(optimizer).found is not None:
            self.find(optimizer)
        super().unscale_(optimizer)


class NeverSteps(Stranger):
    def take(self, optimizer):
        return None


class StepReturnsNothing(Stranger):
    def take(self, optimizer):
        optimizer.step()


class SkipsAll(Stranger):
    def take(self, optimizer):
        return (
            None
            if any(entry.found for entry in self.seen.values())
            else super().take(optimizer)
        )


class TakesClosures(Stranger):
    def refuse_closures(self, args, kwargs):
        pass


class IgnoresASetter(Stranger):
    def set_backoff_factor(self, value):
        pass


class OverrideRestartsTheStreak(Stranger):
    def override(self, new_scale):
        self.now = (float32(new_scale), 0)


# ------------------------------------------------------------------- wrong: checkpoints and threads


class DoesNotSaveTheStreak(Stranger):
    def state_dict(self):
        return {**super().state_dict(), "n": 0}


class SavesWhatGoesOn(Stranger):
    def state_dict(self):
        self.live = getattr(self, "live", {})
        self.live |= super().state_dict()
        return self.live

    def advance(self, found):
        super().advance(found)
        self.state_dict()


class SavesItsOwnTensor(Stranger):
    """Hands out the tensor of its scale, and writes into it."""

    def state_dict(self):
        saved = super().state_dict()
        self.tensor = getattr(self, "tensor", torch.zeros(()))
        self.tensor.fill_(saved["S"])
        return saved | {"S": self.tensor}

    def load_state_dict(self, saved):
        super().load_state_dict(saved | {"S": float(saved["S"])})

    def advance(self, found):
        super().advance(found)
        self.state_dict()


class LosesTheStreakWhenPickled(Stranger):
    def __getstate__(self):
        return {**vars(self), "now": (self.now[0], 0)}


class SharesAFlag(Stranger):
    """What belongs to one optimizer is kept on the scaler, where another thread's call finds it."""

    def find(self, optimizer):
        self.flag = super().find(optimizer)
        return self.flag

    def step(self, optimizer, *args, **kwargs):
        if self.on and self.seen.get(id(optimizer)):
            self.seen[id(optimizer)].found = self.flag
        return super().step(optimizer, *args, **kwargs)


class SavesHalfOfAnUpdate(Stranger):
    """Scale and streak are read one after the other."""

    def state_dict(self):
        return {**super().state_dict(), "S": self.now[0], "n": self.now[1]}


# ------------------------------------------------------- wrong: beyond what one short history shows


class CountsInAByte(Stranger):
    def advance(self, found):
        super().advance(found)
        self.now = (self.now[0], self.now[1] % 256)


class ForgetsTheVerdictOfTheLastStep(Stranger):
    """A shortcut for torch's own interval."""

    def advance(self, found):
        super().advance(found and self.now[1] + 1 != 2000)


class TakesZerosForAnOverflow(Stranger):
    def is_bad(self, grad):
        return (
            super().is_bad(grad)
            or not (grad.to_dense() if grad.is_sparse else grad).any()
        )


class ReplacesTheGradient(Stranger):
    def find(self, optimizer):
        for param in self.params(optimizer):
            param.grad = param.grad.clone()
        return super().find(optimizer)


class DividesACopyOfWhatIsTransposed(Stranger):
    def divided(self, grad, scale):
        return (
            super().divided(grad, scale)
            if grad.is_sparse or grad.is_contiguous()
            else grad
        )


class MultipliesTheLossItself(Stranger):
    def scale(self, outputs):
        scaled = super().scale(outputs)
        return (
            outputs.mul_(self.used)
            if self.on and getattr(outputs, "grad_fn", None) is not None
            else scaled
        )


class KeepsTheTensorThatItIsGiven(Stranger):
    given = None

    def override(self, new_scale):
        super().override(float(new_scale))
        self.given = new_scale if isinstance(new_scale, torch.Tensor) else None

    def scale(self, outputs):
        if self.given is not None:
            self.now, self.given = (float(self.given), self.now[1]), None
        return super().scale(outputs)


class KeepsItsReciprocalWhenLoaded(Stranger):
    inverse = None

    def advance(self, found):
        super().advance(found)
        self.inverse = 1 / self.now[0]

    def divisor(self):
        return 1 / self.inverse if self.inverse else self.used

    def override(self, new_scale):
        super().override(new_scale)
        self.inverse = None


class ShowsWhatIsLoadedLate(Stranger):
    late = None

    def load_state_dict(self, saved):
        self.late = self.now[0]
        super().load_state_dict(saved)

    def get_scale(self):
        return super().get_scale() if self.late is None else self.late

    def scale(self, outputs):
        self.late = None
        return super().scale(outputs)


WRONG = {  # -> the check that names it
    CountsInAByte: "growth_waits_for_interval",
    ForgetsTheVerdictOfTheLastStep: "overflow_backs_off_once",
    TakesZerosForAnOverflow: "finite_gradients_never_skip",
    ReplacesTheGradient: "gradients_are_unscaled_on_their_device",
    DividesACopyOfWhatIsTransposed: "unscale_by_power_of_two_is_exact",
    MultipliesTheLossItself: "loss_is_multiplied_by_scale",
    KeepsTheTensorThatItIsGiven: "new_scale_keeps_growth_tracker",
    KeepsItsReciprocalWhenLoaded: "gradients_are_unscaled_on_their_device",
    ShowsWhatIsLoadedLate: "state_dict_continues_run",
    KeepsTheStreak: "growth_waits_for_interval",
    HasAFloorOfOne: "overflow_backs_off_once",
    HasMaxScale: "growth_waits_for_interval",
    BacksOffEverySecondTime: "overflow_backs_off_once",
    ComparesByEquality: "growth_continues_after_interval_is_lowered",
    GrowsOnOverflow: "overflow_backs_off_once",
    GrowsToInf: "scale_is_never_infinite",
    BacksOffTwice: "overflow_backs_off_once",
    GrowsByTheInverseOfBackoff: "growth_multiplies_by_factor",
    DecaysWhenClean: "finite_step_never_lowers_scale",
    CountsMicroBatches: "call_sequences_match_torch",
    ChecksTheFirstGroup: "nonfinite_gradients_are_found",
    IgnoresNaN: "nonfinite_gradients_are_found",
    IgnoresNegativeInf: "nonfinite_gradients_are_found",
    LastDtypeWins: "nonfinite_gradients_are_found",
    FiniteBySum: "finite_step_never_lowers_scale",
    ChecksOneSparseGradient: "sparse_gradients_are_checked",
    ForgetsWhatWasNotStepped: "unscaled_overflow_backs_off",
    BacksOffPerOptimizer: "optimizers_share_one_scale",
    DividesByTheNextScale: "unscale_uses_scale_of_loss",
    AllowsFloat16: "float16_gradients_raise",
    DividesThroughFloat16: "unscale_by_power_of_two_is_exact",
    FlushesSubnormals: "unscale_by_power_of_two_is_exact",
    UnscalesByTheScaleOfTheMoment: "update_between_steps_keeps_gradients_correct",
    DividesTwice: "unscale_uses_scale_of_loss",
    SkipAdvancesTheOptimizer: "skipped_step_changes_nothing",
    UpdatesAtTheFirstStep: "optimizers_share_one_scale",
    ScalesAlthoughDisabled: "disabled_scaler_changes_nothing",
    StepsByWhatIsFinite: "no_step_on_nonfinite_gradients",
    DividesBeforeItRefuses: "call_sequences_match_torch",
    NeverSteps: "skipped_step_changes_nothing",
    StepReturnsNothing: "step_returns_optimizer_result",
    SkipsAll: "optimizers_share_one_scale",
    TakesClosures: "misuse_raises",
    IgnoresASetter: "setters_take_effect",
    OverrideRestartsTheStreak: "new_scale_keeps_growth_tracker",
    DoesNotSaveTheStreak: "state_dict_continues_run",
    SavesWhatGoesOn: "state_dict_is_snapshot",
    SavesItsOwnTensor: "state_dict_is_snapshot",
    LosesTheStreakWhenPickled: "pickling_is_exact",
    SharesAFlag: "two_threads_step_two_optimizers",
    SavesHalfOfAnUpdate: "state_dict_is_atomic",
}
