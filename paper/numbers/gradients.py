"""Where gradients lie, the rule and the start, and storms."""

from functools import partial
from math import log2
from statistics import fmean

from ampsim.core.machine import Rule
from ampsim.core.theory import bad_step_drift, critical_bad_rate, trade_off
from figures.claims import NEAR
from figures.derived_numbers import at_share, half_width, last_scales, more_loss
from figures.results import ArmRecords, Result, common
from paper.values import Formula, Number

heat = partial(Number, "exponent_heatmap")
rules = partial(Number, "rules_trained")
storm = partial(Number, "overflow_storm")
new_storm = partial(Number, "overflow_storm@cpu-new-seeds")
hist = partial(Number, "gradient_histogram")
new_hist = partial(Number, "gradient_histogram@cpu-new-seeds")

MIN_SCALE = "storm 2 floor=2^8"
ALIKE = ("G=20", "G=10 a=0.5 b=0.5", "G=5 a=0.25 b=0.25")


def headroom(arm: ArmRecords) -> float:
    """Return the mean headroom in bits."""
    return fmean(mean for mean, _ in arm.column("headroom"))


def products(run: Result) -> list[float]:
    """Return skip rate times unused bits of the arms for which T7 predicts the same."""
    return [run.arm(name).mean("skip_rate") * headroom(run.arm(name)) for name in ALIKE]


def predicted_products(run: Result) -> list[float]:
    """Return T7's product for each of these arms."""
    settings = [run.arm(name).records[0]["settings"] for name in ALIKE]
    products_of_arms = []
    for setting in settings:
        factors = 2.0 ** setting["growth_bits"], 2.0 ** -setting["backoff_bits"]
        products_of_arms.append(trade_off(Rule(1.0, *factors, setting["growth_interval"])))
    return products_of_arms


def critical(run: Result) -> float:
    """Return T8's critical rate of bad steps at the growth interval of the storms."""
    return critical_bad_rate(Rule(growth_interval=run.config["growth_interval"]))


def off_t8(run: Result) -> float:
    """Return how far drifts above critical are from T8's at the share of bad steps in the run, at most."""
    errors = []
    for row in (row for name in ("storm 1.25", "storm 2") for row in run.arm(name)):
        (_, first), *_, (_, last) = row["scale_changes"]
        predicted = bad_step_drift(
            Rule(growth_interval=row["interval"]), len(row["bad"]) / run.steps
        )
        errors.append(abs(log2(last / first) / run.steps - predicted))
    return max(errors)


def at_start(run: Result, arm: str, column: str) -> float:
    """Return the mean of the first values of a column."""
    return fmean(row[column][0] for row in run.arm(arm))


def first_growth(run: Result) -> int:
    """Return the step of the first growth, from scale 1, which the seeds have in common."""
    return common(int(row["scale_changes"][1][0]) for row in run.arm("gpt dynamic"))


def largest(run: Result) -> int:
    """Return the largest number of parameters."""
    return max(int(arm.first["elements"]) for arm in run.arms.values())


def largest_share_met(run: Result) -> float:
    """Return the largest share of bad steps in a run."""
    return max(len(row["bad"]) for row in run.records) / run.steps


NUMBERS: dict[str, Number | Formula] = {
    "hist.rounded": hist(lambda run: fmean(at_share(run, "rounded_flushed", 0)), "%0"),
    "hist.real": hist(lambda run: fmean(at_share(run, "real_flushed", 0)), "%0"),
    "hist.steps": hist(lambda run: run.arm("gpt").the("points")[2], "d"),
    "hist.error.real": hist(lambda run: fmean(at_share(run, "real_error", 2)), "%0"),
    "hist.error.new.min": new_hist(lambda run: min(at_share(run, "real_error", 2)), ">=%0"),
    "hist.error.new.max": new_hist(lambda run: max(at_share(run, "real_error", 2)), "<=%0"),
    "hist.error.rounded": hist(lambda run: fmean(at_share(run, "rounded_error", 2)), "%0"),
    "trained.largest": heat(largest, ">=,d"),
    "heat.unscaled.lost": heat(lambda run: at_start(run, "gpt unscaled", "lost"), "%0"),
    "heat.unscaled.rounded": heat(lambda run: at_start(run, "gpt unscaled", "rounded"), "%0"),
    "heat.interval": heat(first_growth, "words"),
    "heat.first": heat(lambda run: at_start(run, "gpt dynamic", "found_inf"), ".0f"),
    "rules.seeds": rules(lambda run: len(run.seeds), "words"),
    "rules.5.skip": rules(lambda run: run.arm("G=5").mean("skip_rate"), "%0"),
    "rules.2000.skip": rules(lambda run: run.arm("G=2000").mean("skip_rate"), "%1"),
    "rules.5.headroom": rules(lambda run: headroom(run.arm("G=5")), ".1f"),
    "rules.2000.headroom": rules(lambda run: headroom(run.arm("G=2000")), ".1f"),
    "rules.5.more": rules(lambda run: more_loss(run, "G=5").mean(), ".3f"),
    "rules.5.half": rules(lambda run: half_width(more_loss(run, "G=5")), ".3f"),
    "rules.2000.more": rules(lambda run: more_loss(run, "G=2000").mean(), ".3f"),
    "rules.2000.half": rules(lambda run: half_width(more_loss(run, "G=2000")), ".3f"),
    "rules.near": Formula(lambda: len(NEAR), "words"),
    "rules.t7.min": rules(lambda run: min(predicted_products(run)), ">=.3f"),
    "rules.t7.max": rules(lambda run: max(predicted_products(run)), "<=.3f"),
    "rules.product.min": rules(lambda run: min(products(run)), ">=.3f"),
    "rules.product.max": rules(lambda run: max(products(run)), "<=.3f"),
    "rules.32.skipped": rules(lambda run: run.arm("G=20 from 2^32").mean("lost_steps"), ".0f"),
    "rules.32.predicted": rules(
        lambda run: fmean(32 - x for x in run.arm("G=20 from 2^32").column("first_ceiling")), ".0f"
    ),
    "rules.left.high": rules(lambda run: run.arm("G=20 from 2^32").mean("left_plateau"), ".0f"),
    "rules.left.low": rules(lambda run: run.arm("G=20 from 2^0").mean("left_plateau"), ".0f"),
    "rules.left.slow": rules(lambda run: run.arm("G=200 from 2^0").known("left_plateau"), "words"),
    "rules.steps": rules(lambda run: run.config["steps"], "<=d"),
    "rules.logmax.stuck": rules(
        lambda run: len(run.seeds) - run.arm("LogMax as published").known("left_plateau"), "words"
    ),
    "rules.headroom.1": rules(lambda run: run.arm("headroom 1 bit").mean("skip_rate"), "%1"),
    "storm.2.scale": storm(lambda run: max(last_scales(run.arm("storm 2"))), "2^"),
    "storm.2.min": storm(lambda run: run.arm("storm 2").min("test_loss"), ">=.3f"),
    "storm.2.max": storm(lambda run: run.arm("storm 2").max("test_loss"), "<=.3f"),
    "storm.min-scale.min": storm(lambda run: run.arm(MIN_SCALE).min("test_loss"), ">=.3f"),
    "storm.min-scale.max": storm(lambda run: run.arm(MIN_SCALE).max("test_loss"), "<=.3f"),
    "storm.short.min": storm(lambda run: run.arm("storm 2 G=4").min("test_loss"), ">=.3f"),
    "storm.short.max": storm(lambda run: run.arm("storm 2 G=4").max("test_loss"), "<=.3f"),
    "storm.new.2.min": new_storm(lambda run: run.arm("storm 2").min("test_loss"), ">=.3f"),
    "storm.new.2.max": new_storm(lambda run: run.arm("storm 2").max("test_loss"), "<=.3f"),
    "storm.new.min-scale.min": new_storm(lambda run: run.arm(MIN_SCALE).min("test_loss"), ">=.3f"),
    "storm.new.min-scale.max": new_storm(lambda run: run.arm(MIN_SCALE).max("test_loss"), "<=.3f"),
    "storm.new.short.min": new_storm(lambda run: run.arm("storm 2 G=4").min("test_loss"), ">=.3f"),
    "storm.new.short.max": new_storm(lambda run: run.arm("storm 2 G=4").max("test_loss"), "<=.3f"),
    "storm.interval": storm(lambda run: run.config["growth_interval"], "d"),
    "storm.critical": storm(critical, "%1"),
    "storm.set.min": storm(lambda run: min(run.config["ratios"]) * critical(run), "%1"),
    "storm.set.max": storm(lambda run: max(run.config["ratios"]) * critical(run), "%1"),
    "storm.met.max": storm(largest_share_met, "<=%1"),
    "storm.drift.off": storm(off_t8, "<=.3f"),
}
