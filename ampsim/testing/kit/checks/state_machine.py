"""Level 0: the checks of `ampsim.core.properties`, run on overflow sequences that hypothesis generates, and steps."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from ampsim.core.machine import Rule
from ampsim.core.properties import HISTORY_PROPERTIES, UPDATE_PROPERTIES, History, Update
from ampsim.testing.check import sentence
from ampsim.testing.kit.check import check
from ampsim.testing.kit.expected import trajectory
from ampsim.testing.kit.strategies import histories, rules
from ampsim.testing.kit.subject import Traits

FOUND = {
    "scale_is_never_infinite": [
        {"rule": {"init_scale": 2.0**127, "growth_interval": 1}, "found_inf": [False]}
    ],
    "growth_waits_for_interval": [  # an overflow at min_scale, which does not change the scale
        {
            "rule": {"init_scale": 1.0, "growth_interval": 3},
            "found_inf": [*[True] * 2, *[False] * 2, True, False],
        }
    ],
}
LAST = {  # tenths that do not add up to 1, counts that 8 bits cannot hold, the last step of torch's interval
    "growth_waits_for_interval": [
        {"rule": {"growth_interval": 10}, "found_inf": [False] * 10},
        {"rule": {"growth_interval": 300}, "found_inf": [False] * 300},
        {"rule": {"growth_interval": 2000}, "found_inf": [False] * 1999 + [True]},
    ],
    "overflow_backs_off_once": [
        {"rule": {"growth_interval": 2000}, "found_inf": [False] * 1999 + [True]}
    ],
}
ISSUES = {
    "overflow_backs_off_once": "redai-studio/Relax#44",
    "scale_is_never_infinite": "pytorch/pytorch#98828",
}
TRACKER = (
    "overflow_resets_growth_tracker",
    "finite_step_counts_once",
)  # seen in the scale once it grows


def updates(history: History, shown: list[int | None]) -> Iterator[tuple[str, Update]]:
    """Yield the place and the values of each update. The growth tracker before it is counted, after it read."""
    tracker = 0
    for t, flag in enumerate(history.found_inf):
        before, after = history.scale[t : t + 2]
        yield f" (update {t})", Update(history.rule, flag, before, after, tracker, shown[t])
        tracker = 0 if flag or tracker + 1 == history.rule.growth_interval else tracker + 1


def run(history: History, shown: list[int | None]) -> Iterator[tuple[str, History]]:
    """Yield the whole run, without a place."""
    yield "", history


def follows_the_machine(
    make, iterate, rule, found_inf, more, expected
):  # printed for the checks of histories
    """Compare the scales of a failing overflow sequence with the reference state machine, up to rounding."""
    scaler = make(**rule)
    scales = [iterate(scaler, each) for each in found_inf + more]
    assert all(math.isclose(*pair, rel_tol=1e-6) for pair in zip(scales, expected)), scales


def is_finite(make, iterate, rule, found_inf):
    """Check that the scales of an overflow sequence are finite."""
    scaler = make(**rule)
    scales = [iterate(scaler, each) for each in [*found_inf, False]]
    assert all(map(math.isfinite, scales)), scales


def _register(
    predicate: Callable[[Any], str | None],
    parts: Callable[[History, list[int | None]], Iterator[Any]],
) -> None:
    """Register one of `ampsim.core.properties` as a check of each of the `parts` of a run."""

    def holds(observe, rule, found_inf, more, expected):
        for where, part in parts(*observe(rule, found_inf)):
            seen = predicate(part)
            assert not seen, f"{seen}{where}"

    def more(traits: Traits, rule: dict[str, Any], **_: object) -> list[bool]:
        return [False] * (1 + (Rule(**rule).growth_interval if name in TRACKER else 0))

    def expected(traits: Traits, rule: dict[str, Any], found_inf: list[bool]) -> list[float]:
        return trajectory(traits, found_inf + more(traits, rule), rule)[:-1]

    name = predicate.__name__
    make = check(
        0, issue=ISSUES.get(name, ""), found=FOUND.get(name, ()), last=LAST.get(name, ()), rule=rules(),
        found_inf=histories(), more=more, expected=expected,
        proof=is_finite if name == "scale_is_never_infinite" else follows_the_machine,
    )  # fmt: skip
    make(holds, name=name, text=sentence(predicate))


for _update_property in UPDATE_PROPERTIES:
    _register(_update_property, updates)
for _history_property in HISTORY_PROPERTIES:
    _register(_history_property, run)


@check(0, issue="NVIDIA/apex#179", found_inf=histories(longest=8))
def skipped_step_changes_nothing(make, iterate, held, found_inf):
    """A skipped step changes no bit of the parameters or the optimizer state."""
    scaler = make(growth_interval=3)
    for overflows in found_inf:
        before = held()
        iterate(scaler, overflows)
        assert not overflows or held() == before, (
            "parameters or optimizer state changed in a skipped step"
        )


@check(0, found_inf=histories(longest=8))
def finite_step_is_taken(make, iterate, held, found_inf):
    """The optimizer steps if its gradients are finite."""
    scaler = make(growth_interval=3)
    for overflows in found_inf:
        before = held()
        iterate(scaler, overflows)
        assert overflows or held() != before, "the optimizer did not step"


@check(0, rule=rules(), found_inf=histories(longest=8))
def get_scale_matches_scale(make, iterate, loss_scale, drop_in, rule, found_inf):
    """Between iterations get_scale() returns the factor that scale() uses next."""
    scaler, rounding = (
        make(**rule),
        0.0 if drop_in else 2.0**-24,
    )  # a scale may be wider than a loss
    for overflows in found_inf:
        iterate(scaler, overflows)
        shown, used = scaler.get_scale(), loss_scale(scaler)
        assert math.isclose(shown, used, rel_tol=rounding), (
            f"get_scale() is {shown!r}, a loss is multiplied by {used!r}"
        )
