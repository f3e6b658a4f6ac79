"""The lockstep machine finds planted bugs: each mutant is torch's scaler with one.

A mutant that survives means that the generators are too tame. Which law a bug breaks is the kit's to say.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test

from tests.torch import lockstep

# No shrinking: what is asserted is that one fails, and the same examples are drawn every time.
BUDGET = settings(
    max_examples=6000,  # ends at the first failure: most die within 250
    stateful_step_count=25,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@contextlib.contextmanager
def temporarily(scaler: Any, **attributes: Any) -> Iterator[None]:
    before = {name: getattr(scaler, name) for name in attributes}
    vars(scaler).update(attributes)
    try:
        yield
    finally:
        vars(scaler).update(before)


class Faithful(torch.amp.GradScaler):
    """No bug: a subclass as such must pass."""


class Base(torch.amp.GradScaler):
    """What mutants of ``update`` ask: will the machine step, and with what."""

    def _found(self) -> list[torch.Tensor]:
        states = self._per_optimizer_states.values() if self._enabled else ()
        return [found for state in states for found in state["found_inf_per_device"].values()]

    def _overflows(self) -> bool:
        return bool(sum(found.item() for found in self._found()))

    def _will_count(self) -> bool:
        return bool(self._found()) and not self._overflows() and type(self._growth_interval) is int

    def _due(self) -> bool:
        return self._will_count() and self._growth_tracker.item() + 1 == self._growth_interval


class GrowsOneLate(Base):
    def update(self, new_scale=None):
        late = {"_growth_interval": self._growth_interval + 1} if self._will_count() else {}
        with temporarily(self, **late):
            super().update(new_scale)


class GrowsAtOrPastTheInterval(Base):
    def update(self, new_scale=None):
        due = self._will_count() and self._growth_tracker.item() + 1 >= self._growth_interval
        now = {"_growth_interval": self._growth_tracker.item() + 1} if due else {}
        with temporarily(self, **now):
            super().update(new_scale)


class GrowsByTheInverseOfBackoff(Base):
    def update(self, new_scale=None):
        backoff = self._backoff_factor if self._enabled and self._found() else None
        usable = isinstance(backoff, float) and backoff != 0 and isinstance(self._growth_factor, float)
        with temporarily(self, **({"_growth_factor": 1 / backoff} if usable else {})):
            super().update(new_scale)


class GrowsToInf(Base):
    def update(self, new_scale=None):
        due = new_scale is None and self._due()
        grown = self._scale.double() * self._growth_factor if due and type(self._growth_factor) is float else None
        super().update(new_scale)
        if grown is not None and not self._found():
            self._scale.copy_(grown)  # rounded once, as the kernel does: it is inf alone that is planted


class CreepsUpOnCleanSteps(Base):
    def update(self, new_scale=None):
        counts = new_scale is None and self._will_count() and not self._due()
        super().update(new_scale)
        if counts and not self._found():
            self._scale.mul_(1.25)


class CountsEachOptimizer(Base):
    def update(self, new_scale=None):
        extra = len(self._found()) - 1 if new_scale is None and self._will_count() and not self._due() else 0
        super().update(new_scale)
        if extra > 0 and not self._found():
            self._growth_tracker.add_(extra)


class KeepsTheStreakOnOverflow(Base):
    def update(self, new_scale=None):
        streak = self._growth_tracker.item() if new_scale is None and self._found() and self._overflows() else 0
        super().update(new_scale)
        if streak and not self._found():
            self._growth_tracker.fill_(streak)


class ForgetsTheSecondOptimizer(Base):
    def update(self, new_scale=None):
        for found in self._found()[1:] if new_scale is None else ():
            found.zero_()
        super().update(new_scale)


class BacksOffOncePerOptimizer(Base):
    def update(self, new_scale=None):
        extra = sum(f.item() == 1 for f in self._found()) - 1 if new_scale is None else 0
        super().update(new_scale)
        if extra > 0 and not self._found():
            self._scale.mul_(self._backoff_factor**extra)


class MissesASubnormalFoundInf(Base):
    def update(self, new_scale=None):
        for found in self._found() if new_scale is None else ():
            if abs(found.item()) < 2.0**-126:
                found.zero_()
        super().update(new_scale)


class RoundsFactorsFirst(Base):
    def update(self, new_scale=None):
        names = ("_growth_factor", "_backoff_factor") if self._enabled else ()
        floats = {name: getattr(self, name) for name in names if type(getattr(self, name)) is float}
        with temporarily(self, **{name: torch.tensor(x).item() for name, x in floats.items()}):
            super().update(new_scale)


class UpdatesWithoutAnyCheck(Base):
    def update(self, new_scale=None):
        if self._enabled and self._scale is not None and new_scale is None and not self._found():
            return
        super().update(new_scale)


class HoldsTheScaleInFloat64(torch.amp.GradScaler):
    def _lazy_init_scale_growth_tracker(self, dev):
        super()._lazy_init_scale_growth_tracker(dev)
        self._scale = torch.tensor(float(self._init_scale), dtype=torch.float64)


class ResetsTheStreakOnOverride(torch.amp.GradScaler):
    def update(self, new_scale=None):
        super().update(new_scale)
        if new_scale is not None and self._enabled:
            self._growth_tracker.zero_()


class KeepsStagesOnOverride(torch.amp.GradScaler):
    def update(self, new_scale=None):
        states = self._per_optimizer_states if self._enabled else None
        super().update(new_scale)
        if new_scale is not None and self._enabled:
            self._per_optimizer_states = states


class LosesTheStreakOnLoad(torch.amp.GradScaler):
    def load_state_dict(self, state_dict):
        super().load_state_dict({**state_dict, "_growth_tracker": 0} if "_growth_tracker" in state_dict else state_dict)


class LosesTheStreakWhenPickled(torch.amp.GradScaler):
    def __getstate__(self):
        state = super().__getstate__()
        return {**state, "_init_growth_tracker": 0} if self._enabled else state


class UnscalesByTheNextScale(Base):
    """DeepSpeed's order: update, then unscale."""

    def unscale_(self, optimizer):
        due = self._enabled and self._scale is not None and isinstance(self._growth_factor, float)
        due = due and self._growth_tracker.item() + 1 == self._growth_interval
        scale = self._scale * self._growth_factor if due else None
        with temporarily(self, **({"_scale": scale} if due else {})):
            super().unscale_(optimizer)


class UnscalesByDividing(torch.amp.GradScaler):
    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        found = super()._unscale_grads_(optimizer, torch.ones_like(inv_scale), found_inf, allow_fp16)
        for param in optimizer.param_groups[0]["params"]:
            if param.grad is not None and not allow_fp16:
                param.grad.div_(self._scale)
        return found


class UnscalesTwice(torch.amp.GradScaler):
    def unscale_(self, optimizer):
        state = self._per_optimizer_states.get(id(optimizer)) if self._enabled else None
        if state is not None and state["stage"].value == 1:
            state["stage"] = type(state["stage"])(0)
        super().unscale_(optimizer)


class StepsTwice(torch.amp.GradScaler):
    def step(self, optimizer, *args, **kwargs):
        state = self._per_optimizer_states.get(id(optimizer)) if self._enabled else None
        if state is not None and state["stage"].value == 2 and "closure" not in kwargs:
            state["stage"] = type(state["stage"])(1)
        return super().step(optimizer, *args, **kwargs)


class MissesSome(torch.amp.GradScaler):
    """Non-finite gradients that `_is_bad` does not know are let through."""

    def _is_bad(self, grad: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        grads = [p.grad for p in optimizer.param_groups[0]["params"] if p.grad is not None]
        bad = any(bool(self._is_bad(g).any()) for g in grads)
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        for tensor in found.values():
            tensor.fill_(float(bad))
        return found


class MissesNaN(MissesSome):
    def _is_bad(self, grad):
        return grad.isinf()


class MissesNegativeInf(MissesSome):
    def _is_bad(self, grad):
        return grad.isnan() | grad.isposinf()


class ChecksOnlyTheFirstElement(MissesSome):
    def _is_bad(self, grad):
        return ~grad.reshape(-1)[:1].isfinite()


class StepsAlthoughItOverflowed(torch.amp.GradScaler):
    def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
        return optimizer.step(*args, **kwargs)


class SkipsByZeroingGradients(torch.amp.GradScaler):
    """Paddle's static graph does this; momentum moves the parameters all the same."""

    def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
        if any(found.item() for found in optimizer_state["found_inf_per_device"].values()):
            for param in optimizer.param_groups[0]["params"]:
                if param.grad is not None:
                    param.grad.zero_()
        return optimizer.step(*args, **kwargs)


class SkipsEveryOptimizer(torch.amp.GradScaler):
    def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
        states = self._per_optimizer_states.values()
        if any(found.item() for state in states for found in state["found_inf_per_device"].values()):
            return None
        return optimizer.step(*args, **kwargs)


class FusedStepsAlthoughItOverflowed(torch.amp.GradScaler):
    def _check_inf_per_device(self, optimizer):
        found = super()._check_inf_per_device(optimizer)
        hook = optimizer.register_step_pre_hook(lambda opt, *_: opt.__setattr__("found_inf", torch.tensor(0.0)))
        optimizer.register_step_post_hook(lambda *_: hook.remove())
        return found


class StepReturnsNothing(torch.amp.GradScaler):
    def step(self, optimizer, *args, **kwargs):
        super().step(optimizer, *args, **kwargs)


class IgnoresTheBackoffSetter(torch.amp.GradScaler):
    def set_backoff_factor(self, new_factor):
        pass


class RefusesPositionalClosures(torch.amp.GradScaler):
    def step(self, optimizer, *args, **kwargs):
        if args and self._enabled:
            kwargs["closure"] = args[0]
        return super().step(optimizer, *args, **kwargs)


class RoundsTheScaleForTheLoss(torch.amp.GradScaler):
    def scale(self, outputs):
        if isinstance(outputs, torch.Tensor) and self._enabled:
            super().scale(outputs)
            return outputs * self._scale.bfloat16().float()
        return super().scale(outputs)


class UpdatesInsideStep(torch.amp.GradScaler):
    """The backoff comes with the overflow, before update()."""

    def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
        if any(found.item() for found in optimizer_state["found_inf_per_device"].values()):
            self._scale.mul_(0.5)
        return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)


NO_MUTANTS = {torch.amp.GradScaler, Faithful, Base, MissesSome}
MUTANTS = [each for each in vars().values() if isinstance(each, type) and torch.amp.GradScaler in each.__mro__]
MUTANTS = [each for each in MUTANTS if each not in NO_MUTANTS]


class GrowsAtEachStep(lockstep.Lockstep):
    """The lockstep machine whose clean iterations grow: by an ulp more than a rounded factor would, or to inf."""

    @initialize(init=st.sampled_from((1300.0, 3e38)))
    def begin(self, init: float) -> None:
        super().begin((init, 1.5 + 0.98 * 2.0**-24, 0.5, 1), True, [("sgd", "float32")], True)


DIRECTED = {  # the others die early among all events that the machine draws
    **dict.fromkeys((GrowsOneLate, GrowsToInf, RoundsFactorsFirst, UnscalesByTheNextScale), GrowsAtEachStep),
    **dict.fromkeys((MissesASubnormalFoundInf, StepReturnsNothing, RefusesPositionalClosures), lockstep.RareEvents),
    **dict.fromkeys(
        (BacksOffOncePerOptimizer, GrowsAtOrPastTheInterval, ResetsTheStreakOnOverride), lockstep.RareEvents
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_planted_bug_dies(mutant):
    with pytest.raises(AssertionError):
        run_state_machine_as_test(DIRECTED.get(mutant, lockstep.Lockstep).of(mutant), settings=BUDGET)


def test_without_a_bug_nothing_dies():
    run_state_machine_as_test(lockstep.Lockstep.of(Faithful), settings=settings(BUDGET, max_examples=20))
