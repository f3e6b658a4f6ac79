"""A right scaler, which is the reference machine, and scalers with one bug each: check -> what
breaks it.
"""

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from ampsim.core.machine import Arithmetic, Rule, State, init, round_to_float32, update
from ampsim.frameworks.adapter import Adapter, Step
from ampsim.frameworks.checks.subject import REFILL

CONSTANTS = (
    "init_scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
    "min_scale",
    "hysteresis",
)


class Right(Adapter):
    """The reference machine as an adapter. It checks what it divided, too."""

    name, requirement, target, source = (
        "right",
        "ampsim==0",
        "ampsim.core.machine",
        "https://example.org/machine",
    )
    constants = MappingProxyType(dict(zip(CONSTANTS, CONSTANTS, strict=True)))
    rule = Rule(min_scale=1.0, hysteresis_reset=REFILL)

    def start(self, **constants: Any) -> None:
        if (
            constants.get("growth_factor", 2.0) <= 1
            or constants.get("backoff_factor", 0.5) >= 1
        ):
            raise ValueError("it would never grow")
        least = min(constants.get("min_scale", 1.0), constants.get("init_scale", 1.0))
        self.following = self.rule.replace(**{"min_scale": least, **constants})
        self.now = init(self.following)

    def get_scale(self) -> float:
        return self.now.scale

    def scale_loss(self, loss: float) -> float:
        return round_to_float32(loss * self.now.scale)

    def divide(self, scaled: Sequence[float], scale: float) -> tuple[float, ...]:
        return tuple(
            round_to_float32(each / scale if scale else math.nan) for each in scaled
        )

    def overflows(self, scaled: Sequence[float], unscaled: Sequence[float]) -> bool:
        return not all(map(math.isfinite, (*scaled, *unscaled)))

    def step(self, scaled: Sequence[float]) -> Step:
        used = self.now.scale
        unscaled = self.divide(scaled, used)
        found_inf = self.overflows(scaled, unscaled)
        self.now = self.after(found_inf)
        return Step(
            used, not found_inf, None if found_inf else unscaled, self.now.scale
        )

    def after(self, found_inf: bool) -> State:
        return update(self.following, self.now, found_inf)

    def state_dict(self) -> object:
        return [self.now.scale, self.now.growth_tracker, self.now.overflow_tracker]

    def load_state_dict(self, state: Any) -> None:
        self.now = State(*state)


class IgnoresFactors(Right):
    def start(self, **constants: Any) -> None:
        super().start(
            **{**constants, "growth_factor": 2.0, "backoff_factor": 0.5}
        )  # apex


class TakesAnything(Right):
    def start(self, **constants: Any) -> None:
        self.following = Rule.unchecked(**constants)
        self.now = State(self.following.init_scale)


class LosesItsMinimum(Right):
    def start(self, **constants: Any) -> None:
        super().start(
            **{**constants, "min_scale": min(1.0, constants.get("init_scale", 1.0))}
        )  # jmp under jit


class PassesItsMinimum(Right):
    def after(self, found_inf: bool) -> State:  # BMTrain
        free = self.following.replace(min_scale=None)
        return update(
            free,
            self.now,
            found_inf and self.now.scale > (self.following.min_scale or 0),
        )


class ScalesByWhatCame(Right):
    last = 1024.0

    def scale_loss(self, loss: float) -> float:
        return loss * self.last

    def step(self, scaled: Sequence[float]) -> Step:
        step = super().step(scaled)
        self.last = step.used
        return step


class DividesByTheNew(Right):
    def step(self, scaled: Sequence[float]) -> Step:  # DeepSpeed, ColossalAI, mpx
        step = super().step(scaled)
        return Step(
            step.used,
            step.stepped,
            step.unscaled and self.divide(scaled, step.scale),
            step.scale,
        )


class DividesByHalfPrecision(Right):
    def scale_loss(self, loss: float) -> float:  # mpx
        return (
            loss * float(f"{self.now.scale:.3g}")
            if math.frexp(self.now.scale)[0] != 0.5
            else loss * self.now.scale
        )


class PassesMinusInf(Right):
    def overflows(self, scaled: Sequence[float], unscaled: Sequence[float]) -> bool:
        return math.inf in (*scaled, *unscaled) or any(
            map(math.isnan, scaled)
        )  # fairseq


class LooksAtTheFirst(Right):
    def overflows(self, scaled: Sequence[float], unscaled: Sequence[float]) -> bool:
        return not math.isfinite(scaled[0]) or any(map(math.isnan, scaled))


class SeesNaNInTheFirst(Right):
    def overflows(self, scaled: Sequence[float], unscaled: Sequence[float]) -> bool:
        return any(map(math.isinf, scaled)) or math.isnan(scaled[0])


class PassesNaN(Right):
    def overflows(self, scaled: Sequence[float], unscaled: Sequence[float]) -> bool:
        return max(map(abs, (*scaled, *unscaled))) == math.inf


class SumsFirst(Right):
    def overflows(self, scaled: Sequence[float], unscaled: Sequence[float]) -> bool:
        return not math.isfinite(round_to_float32(sum(scaled))) or super().overflows(
            scaled, unscaled
        )  # apex


class LooksBeforeItDivides(Right):
    def overflows(self, scaled: Sequence[float], unscaled: Sequence[float]) -> bool:
        return not all(map(math.isfinite, scaled))  # torch

    def divide(self, scaled: Sequence[float], scale: float) -> tuple[float, ...]:
        inverse = round_to_float32(1 / scale)
        return tuple(round_to_float32(each * inverse) for each in scaled)


class IsLate(Right):
    rule = Right.rule.replace(delay=1)  # RoundPipe, MXNet


class IsPatient(Right):
    def start(self, **constants: Any) -> None:
        super().start(**{**constants, "hysteresis": 2})


class LiftsToOne(Right):
    def start(self, **constants: Any) -> None:
        super().start(**constants)
        self.following = self.following.replace(min_scale=1.0)  # jmp, tf_keras

    def after(self, found_inf: bool) -> State:
        return (
            State(max(1.0, self.now.scale / 2))
            if found_inf
            else super().after(found_inf)
        )


class GrowsLate(Right):
    def start(self, **constants: Any) -> None:
        super().start(
            **{
                **constants,
                "growth_interval": constants.get("growth_interval", 2000) + 1,
            }
        )  # flax


class GrowsOnce(Right):
    def after(self, found_inf: bool) -> State:
        after = super().after(found_inf)
        return (
            State(after.scale, -1, after.overflow_tracker)
            if after.scale > self.now.scale
            else after
        )


class KeepsTheStreak(Right):
    def after(self, found_inf: bool) -> State:
        after = super().after(found_inf)
        if found_inf and after.scale == self.now.scale:  # BMTrain at its minimum
            return State(after.scale, self.now.growth_tracker, after.overflow_tracker)
        return after


class BecomesInf(Right):
    rule = Right.rule.replace(
        arithmetic=Arithmetic(keeps_finite=False)
    )  # Keras, Paddle, Megatron


class BecomesZero(Right):
    def start(self, **constants: Any) -> None:
        super().start(**constants)
        self.following = self.following.replace(min_scale=None)  # torch


class StaysDown(Right):
    def after(self, found_inf: bool) -> State:
        return self.now if self.now.scale <= 1.0 else super().after(found_inf)


class Saturates(Right):
    def start(self, **constants: Any) -> None:
        super().start(**constants)
        self.following = self.following.replace(
            max_scale=max(65504.0, self.following.init_scale)
        )  # mpx


class SavesTheDefault(Right):
    def load_state_dict(self, state: Any) -> None:
        self.now = State(1024.0 if state[0] > 1024.0 else state[0], *state[1:])


class SavesNoStreak(Right):
    def state_dict(self) -> object:
        return [self.now.scale]  # fairseq, ColossalAI


class SavesNoPatience(Right):
    def load_state_dict(self, state: Any) -> None:
        self.now = State(*state[:2])  # NeMo


class SharesItsStreak(Right):
    streak = 0

    def start(self, **constants: Any) -> None:
        super().start(**constants)
        self.now = State(
            self.now.scale, min(type(self).streak, self.following.growth_interval - 1)
        )

    def after(self, found_inf: bool) -> State:
        after = super().after(found_inf)
        type(self).streak = after.growth_tracker
        return after


class GrowsOnOverflow(Right):
    def after(self, found_inf: bool) -> State:
        return State(self.now.scale * 2) if found_inf else super().after(found_inf)


class LooksBeforeItDividesByNothing(LooksBeforeItDivides, BecomesZero):
    pass


class Decays(Right):
    def after(self, found_inf: bool) -> State:
        after = super().after(found_inf)
        return after if found_inf else State(after.scale * 0.99, after.growth_tracker)


class NeverBacksOff(Right):
    def after(self, found_inf: bool) -> State:
        return State(self.now.scale) if found_inf else super().after(found_inf)


class SavesAfterAnUpdate(Right):
    updates = 0

    def start(self, **constants: Any) -> None:
        super().start(**constants)
        self.updates = 0

    def after(self, found_inf: bool) -> State:
        self.updates += 1
        return super().after(found_inf)

    def state_dict(self) -> object:
        return super().state_dict() if self.updates else None

    def load_state_dict(self, state: Any) -> None:
        if state is not None:
            super().load_state_dict(state)


PLANTED: dict[str, tuple[type[Right], ...]] = {
    "overflow_backs_off_once": (
        IsLate,
        IsPatient,
        LosesItsMinimum,
        LiftsToOne,
        PassesItsMinimum,
        IgnoresFactors,
        GrowsOnOverflow,
    ),
    "finite_step_never_lowers_scale": (Decays,),
    "growth_waits_for_interval": (
        GrowsLate,
        GrowsOnce,
        KeepsTheStreak,
        SharesItsStreak,
    ),
    "growth_multiplies_by_factor": (IgnoresFactors,),
    "scale_is_never_infinite": (BecomesInf,),
    "scale_stays_within_bounds": (PassesItsMinimum,),
    "skips_stay_within_budget": (NeverBacksOff,),
    "get_scale_matches_scale": (ScalesByWhatCame,),
    "scale_is_never_subnormal": (BecomesZero,),
    "scale_recovers_after_overflows": (StaysDown,),
    "scale_stays_power_of_two": (Saturates,),
    "state_dict_continues_run": (
        SavesTheDefault,
        SavesNoStreak,
        SavesNoPatience,
        SavesAfterAnUpdate,
    ),
    "neutral_factors_raise": (TakesAnything,),
    "invalid_arguments_raise": (TakesAnything,),
    "no_step_on_nonfinite_gradients": (
        PassesMinusInf,
        LooksAtTheFirst,
        PassesNaN,
        SeesNaNInTheFirst,
    ),
    "no_nonfinite_step_below_scale_one": (
        LooksBeforeItDivides,
        LooksBeforeItDividesByNothing,
    ),
    "unscale_uses_scale_of_loss": (DividesByTheNew, DividesByHalfPrecision),
    "finite_gradients_never_skip": (SumsFirst,),
}
