"""Level 0: the laws of `ampsim.core.laws`, each as a check, on histories that hypothesis draws."""

from collections.abc import Callable, Iterator
from typing import Any

from ampsim.core.laws import HISTORY_LAWS, UPDATE_LAWS, History, Update
from ampsim.core.machine import Rule
from ampsim.testing.kit.check import check
from ampsim.testing.kit.result import law_of
from ampsim.testing.kit.strategies import histories, rules
from ampsim.testing.kit.trial import Trial

FOUND = {"scale_stays_finite": [{"rule": Rule(init_scale=2.0**127, growth_interval=1), "found_inf": [False]}]}
ISSUES = {"overflow_backs_off_once": "redai-studio/Relax#44", "scale_stays_finite": "pytorch/pytorch#98828"}


def updates(history: History, shown: list[int | None]) -> Iterator[tuple[str, Update]]:
    """Yield where and what a run's updates were. The streak before one is counted, after it as the scaler showed."""
    streak = 0
    for t, flag in enumerate(history.found_inf):
        before, after = history.scale[t : t + 2]
        yield f" (update {t})", Update(history.rule, flag, before, after, streak, shown[t])
        streak = 0 if flag or streak + 1 == history.rule.growth_interval else streak + 1


def run(history: History, shown: list[int | None]) -> Iterator[tuple[str, History]]:
    """Yield the run itself, which is nowhere in particular."""
    yield "", history


def _register(law: Callable[[Any], str | None], parts: Callable[[History, list[int | None]], Iterator[Any]]) -> None:
    """Make a check of a law, which is to hold of each of the `parts` of a run."""

    def holds(t: Trial, rule: Rule, found_inf: list[bool]) -> None:
        for where, part in parts(*t.live(rule, found_inf)):
            if seen := law(part):
                t.fail(f"{seen}{where}")

    name = law.__name__
    make = check(0, issue=ISSUES.get(name, ""), found=FOUND.get(name, ()), rule=rules(), found_inf=histories())
    make(holds, name=name, law=law_of(law))


for _update_law in UPDATE_LAWS:
    _register(_update_law, updates)
for _history_law in HISTORY_LAWS:
    _register(_history_law, run)


@check(0, issue="NVIDIA/apex#179", found_inf=histories(longest=8))
def skipped_step_changes_nothing(t: Trial, found_inf: list[bool]) -> None:
    """A step whose gradients overflowed leaves every bit of parameters and optimizer state as it was."""
    t.start()
    for flag in found_inf:
        (step,) = t.steps(flag)
        t.require(not (flag and step.parameters_changed), "parameters or optimizer state changed in a skipped step")


@check(0, found_inf=histories(longest=8))
def clean_step_is_taken(t: Trial, found_inf: list[bool]) -> None:
    """A step whose gradients are finite is taken."""
    t.start()
    for flag in found_inf:
        (step,) = t.steps(flag)
        t.require(flag or step.parameters_changed, "the optimizer did not step")


@check(0, rule=rules(), found_inf=histories(longest=8))
def get_scale_is_what_scale_multiplies_by(t: Trial, rule: Rule, found_inf: list[bool]) -> None:
    """Between iterations get_scale() returns the factor that scale() uses next."""
    scaler = t.start(rule)
    for flag in found_inf:
        t.iterate(flag)
        shown, used = scaler.get_scale(), t.loss_scale()
        t.require(t.seen(shown) == used, f"get_scale() is {shown!r}, a loss is multiplied by {used!r}")
