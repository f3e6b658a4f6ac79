"""Level 0: the properties of `ampsim.core.properties` on generated overflow sequences, and steps."""

import math
from collections.abc import Callable
from typing import Any

from ampsim.core.properties import HISTORY_PROPERTIES, UPDATE_PROPERTIES, updates
from ampsim.testing.check import sentence
from ampsim.testing.scaler_checks.adapter import Constants, Flags, ScalerAdapter
from ampsim.testing.scaler_checks.check import check
from ampsim.testing.scaler_checks.example import Example
from ampsim.testing.scaler_checks.strategies import overflow_sequences, rules

FOUND = {
    "scale_is_never_infinite": [
        {"rule": {"init_scale": 2.0**127, "growth_interval": 1}, "found_inf": [False]}
    ],
    "growth_waits_for_interval": [  # an overflow at min_scale, which does not change the scale
        {
            "rule": {"init_scale": 1.0, "growth_interval": 3},
            "found_inf": [True, True, False, False, True, False],
        }
    ],
}
LAST_OF_DEFAULT = {
    "rule": {"growth_interval": 2000},
    "found_inf": [False] * 1999 + [True],
}
# tenths that do not add up to 1, counts that 8 bits cannot hold, the last step of torch's interval
LAST = {
    "growth_waits_for_interval": [
        {"rule": {"growth_interval": 10}, "found_inf": [False] * 10},
        {"rule": {"growth_interval": 300}, "found_inf": [False] * 300},
        LAST_OF_DEFAULT,
    ],
    "overflow_backs_off_once": [LAST_OF_DEFAULT],
}
ISSUES = {
    "overflow_backs_off_once": "redai-studio/Relax#44",
    "scale_is_never_infinite": "pytorch/pytorch#98828",
}


def scales_match_reference(
    case: ScalerAdapter, rule: Constants, found_inf: Flags
) -> None:
    """The scales of an overflow sequence are those of the reference state machine, up to rounding."""
    # One interval of finite steps more, so that a wrong growth tracker shows in the scale.
    found_inf = found_inf + [False] * (1 + rule.get("growth_interval", 2000))
    expected = case.expected_scales(found_inf, **rule)
    scaler = case.make(**rule)
    scales = case.iterate_each(scaler, found_inf)
    same = [math.isclose(*pair, rel_tol=1e-6) for pair in zip(scales, expected)]
    assert all(same), f"update {same.index(False) - 1}: {scales}, expected {expected}"


def scales_are_finite(case: ScalerAdapter, rule: Constants, found_inf: Flags) -> None:
    """The scales of an overflow sequence are finite."""
    scaler = case.make(**rule)
    scales = case.iterate_each(scaler, [*found_inf, False])
    assert all(map(math.isfinite, scales)), scales


def _register(predicate: Callable[[Any], str | None]) -> None:
    """Register one of `ampsim.core.properties` as a check of each update of a run, or of the whole
    run.
    """

    def holds(case: Example, rule: Constants, found_inf: Flags) -> None:
        history = case.observe(rule, found_inf)
        if predicate in HISTORY_PROPERTIES:
            violation = predicate(history)
            assert not violation, violation
            return
        for t, each in enumerate(updates(history)):
            violation = predicate(each)
            assert not violation, f"{violation} (update {t})"

    name = predicate.__name__
    # There the reference is one of several.
    is_about_inf = name == "scale_is_never_infinite"
    make = check(
        0,
        issue=ISSUES.get(name, ""),
        found=FOUND.get(name, ()),
        last=LAST.get(name, ()),
        printed=scales_are_finite if is_about_inf else scales_match_reference,
        rule=rules(),
        found_inf=overflow_sequences(),
    )
    make(holds, name=name, text=sentence(predicate))


_PROPERTIES: tuple[Callable[[Any], str | None], ...] = (
    *UPDATE_PROPERTIES,
    *HISTORY_PROPERTIES,
)
for _property in _PROPERTIES:
    _register(_property)


@check(0, issue="NVIDIA/apex#179", found_inf=overflow_sequences(longest=8))
def skipped_step_changes_nothing(case: ScalerAdapter, found_inf: Flags) -> None:
    """A skipped step changes no bit of the parameters or the optimizer state; a finite step is
    taken.
    """
    scaler = case.make(growth_interval=3)
    for overflows in found_inf:
        before = case.trained_bits()
        case.iterate(scaler, overflows)
        changed = case.trained_bits() != before
        text = "parameters or optimizer state changed in a skipped step"
        assert not (overflows and changed), text
        assert overflows or changed, "the optimizer did not step"


@check(0, rule=rules(), found_inf=overflow_sequences(longest=8))
def get_scale_matches_scale(
    case: ScalerAdapter, rule: Constants, found_inf: Flags
) -> None:
    """Between iterations get_scale() returns the factor that scale() uses next."""
    scaler = case.make(**rule)
    # A scale may be wider than a loss.
    rounding = 0.0 if case.traits.drop_in else 2.0**-24
    for overflows in found_inf:
        case.iterate(scaler, overflows)
        shown = scaler.get_scale()
        used = case.loss_scale(scaler)
        same = math.isclose(shown, used, rel_tol=rounding)
        assert same, f"get_scale() is {shown!r}, a loss is multiplied by {used!r}"
