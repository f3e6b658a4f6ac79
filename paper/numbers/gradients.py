"""Where gradients lie, the rule and the start, and storms."""

from functools import partial
from math import log2
from statistics import fmean

from ampsim.core.machine import Rule
from ampsim.core.theory import bad_step_drift, critical_bad_rate
from figures.derived_numbers import at_share
from figures.results import Result
from paper.values import Formula, Number

heat = partial(Number, "exponent_heatmap")
rules = partial(Number, "rules_trained")
storm = partial(Number, "overflow_storm")
new_storm = partial(Number, "overflow_storm@cpu-new-seeds")
hist = partial(Number, "gradient_histogram")

MIN_SCALE = "storm 2 floor=2^8"


def critical(run: Result) -> float:
    """Return T8's critical rate of bad steps at the growth interval of the storms."""
    return critical_bad_rate(Rule(growth_interval=run.config["growth_interval"]))


def off_t8(run: Result) -> float:
    """Return how far drifts above critical are from T8's at the share of bad steps in the run, at
    most.
    """
    errors = []
    for row in (row for name in ("storm 1.25", "storm 2") for row in run.arm(name)):
        (_, first), *_, (_, last) = row["scale_changes"]
        predicted = bad_step_drift(
            Rule(growth_interval=row["interval"]), len(row["bad"]) / run.steps
        )
        errors.append(abs(log2(last / first) / run.steps - predicted))
    return max(errors)


def largest(run: Result) -> int:
    """Return the largest number of parameters."""
    return max(int(arm.first["elements"]) for arm in run.arms.values())


NUMBERS: dict[str, Number | Formula] = {
    "hist.rounded": hist(lambda run: fmean(at_share(run, "rounded_flushed", 0)), "%0"),
    "hist.real": hist(lambda run: fmean(at_share(run, "real_flushed", 0)), "%0"),
    "trained.largest": heat(largest, ">=,d"),
    "rules.seeds": rules(lambda run: len(run.seeds), "words"),
    "rules.left.slow": rules(
        lambda run: run.arm("G=200 from 2^0").known("left_plateau"), "words"
    ),
    "rules.left.near": rules(
        lambda run: run.arm("G=20").known("left_plateau"), "words"
    ),
    "rules.steps": rules(lambda run: run.config["steps"], "<=d"),
    "storm.2.min": storm(lambda run: run.arm("storm 2").min("test_loss"), ">=.3f"),
    "storm.min-scale.max": storm(
        lambda run: run.arm(MIN_SCALE).max("test_loss"), "<=.3f"
    ),
    "storm.new.2.min": new_storm(
        lambda run: run.arm("storm 2").min("test_loss"), ">=.3f"
    ),
    "storm.new.min-scale.max": new_storm(
        lambda run: run.arm(MIN_SCALE).max("test_loss"), "<=.3f"
    ),
    "storm.interval": storm(lambda run: run.config["growth_interval"], "d"),
    "storm.critical": storm(critical, "%1"),
    "storm.drift.off": storm(off_t8, "<=.3f"),
}
