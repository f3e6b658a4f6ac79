"""The lockstep machine can fail: each of these is torch's scaler with a bug, and the machine finds it."""

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


class GrowsOneLate(Base):
    def update(self, new_scale=None):
        late = {"_growth_interval": self._growth_interval + 1} if self._will_count() else {}
        with temporarily(self, **late):
            super().update(new_scale)


class KeepsTheStreakOnOverflow(Base):
    def update(self, new_scale=None):
        streak = (
            self._growth_tracker.item()
            if new_scale is None and self._found() and self._overflows()
            else 0
        )
        super().update(new_scale)
        if streak and not self._found():
            self._growth_tracker.fill_(streak)


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


class KeepsStagesOnOverride(torch.amp.GradScaler):
    def update(self, new_scale=None):
        states = self._per_optimizer_states if self._enabled else None
        super().update(new_scale)
        if new_scale is not None and self._enabled:
            self._per_optimizer_states = states


class UnscalesByDividing(torch.amp.GradScaler):
    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        found = super()._unscale_grads_(
            optimizer, torch.ones_like(inv_scale), found_inf, allow_fp16
        )
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


class StepsAlthoughItOverflowed(torch.amp.GradScaler):
    def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
        return optimizer.step(*args, **kwargs)


class FusedStepsAlthoughItOverflowed(torch.amp.GradScaler):
    def _check_inf_per_device(self, optimizer):
        found = super()._check_inf_per_device(optimizer)
        hook = optimizer.register_step_pre_hook(
            lambda opt, *_: opt.__setattr__("found_inf", torch.tensor(0.0))
        )
        optimizer.register_step_post_hook(lambda *_: hook.remove())
        return found


class RoundsTheScaleForTheLoss(torch.amp.GradScaler):
    def scale(self, outputs):
        if isinstance(outputs, torch.Tensor) and self._enabled:
            super().scale(outputs)
            return outputs * self._scale.bfloat16().float()
        return super().scale(outputs)


MUTANTS = [
    GrowsOneLate,
    KeepsTheStreakOnOverflow,
    RoundsFactorsFirst,
    UpdatesWithoutAnyCheck,
    HoldsTheScaleInFloat64,
    KeepsStagesOnOverride,
    UnscalesByDividing,
    UnscalesTwice,
    StepsTwice,
    StepsAlthoughItOverflowed,
    FusedStepsAlthoughItOverflowed,
    RoundsTheScaleForTheLoss,
]


class GrowsAtEachStep(lockstep.Lockstep):
    """The lockstep machine whose clean iterations grow: by an ulp more than a rounded factor would, or to inf."""

    @initialize(init=st.sampled_from((1300.0, 3e38)))
    def begin(self, init: float) -> None:
        super().begin((init, 1.5 + 0.98 * 2.0**-24, 0.5, 1), True, [("sgd", "float32")], True)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_seeded_fault_is_detected(mutant):
    grows = mutant in (GrowsOneLate, RoundsFactorsFirst)  # seen in few of the other events
    machine = GrowsAtEachStep if grows else lockstep.Lockstep
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine.of(mutant), settings=BUDGET)


def test_faithful_scaler_passes():
    run_state_machine_as_test(
        lockstep.Lockstep.of(Faithful), settings=settings(BUDGET, max_examples=20)
    )
