"""Where gradients lie, the growth interval, the start, storms and formats."""

from functools import partial
from statistics import fmean

from ampsim.core.machine import Rule
from ampsim.core.theory import trade_off
from figures.quantities import at_share, flushed, interval_spread, last_scales, predicted_at_worst
from figures.results import ArmRecords, Result, common
from paper.ledger import Number

heat = partial(Number, "exponent_heatmap")
interval = partial(Number, "growth_interval")
init = partial(Number, "init_scale")
storm = partial(Number, "overflow_storm")
hist = partial(Number, "gradient_histogram")

ALIKE = ("G=20", "G=20 a=1 b=3", "G=10 a=0.5 b=0.5", "G=5 a=0.25 b=1", "G=5 a=0.25 b=0.25")


def skip_share(arm: ArmRecords) -> float:
    """Return the share of all steps that were skipped."""
    return float(sum(arm.column("skips")) / sum(arm.column("steps")))


def room(arm: ArmRecords) -> float:
    """Return the mean headroom in bits."""
    return fmean(mean for mean, _ in arm.column("headroom"))


def products(run: Result) -> list[float]:
    """Return skip rate times unused bits of the arms for which T7 predicts the same."""
    return [skip_share(run.arm(name)) * room(run.arm(name)) for name in ALIKE]


def predicted_products(run: Result) -> list[float]:
    """Return T7's product for each of these arms."""
    settings = [run.arm(name).records[0]["settings"] for name in ALIKE]
    rules = [Rule(1.0, 2.0 ** s["growth_bits"], 2.0 ** -s["backoff_bits"], s["growth_interval"]) for s in settings]
    return [trade_off(rule) for rule in rules]


NUMBERS: dict[str, Number] = {
    "hist.rounded": hist(lambda run: fmean(at_share(run, "rounded_flushed", 0)), "%0"),
    "hist.real": hist(lambda run: fmean(at_share(run, "real_flushed", 0)), "%0"),
    "hist.real.trained": hist(lambda run: fmean(at_share(run, "real_flushed", 2)), "%0"),
    "hist.steps": hist(lambda run: run.arm("gpt").the("points")[2], "d"),
    "hist.error.real": hist(lambda run: fmean(at_share(run, "real_error", 2)), "%0"),
    "hist.error.rounded": hist(lambda run: fmean(at_share(run, "rounded_error", 2)), "%0"),
    "heat.unscaled.lost": heat(lambda run: fmean(row["lost"][0] for row in run.arm("gpt unscaled")), "%0"),
    "heat.unscaled.rounded": heat(lambda run: fmean(row["rounded"][0] for row in run.arm("gpt unscaled")), "%0"),
    "heat.interval": Number(  # the step of the first growth, from scale 1
        "exponent_heatmap", lambda run: common(row["scale_changes"][1][0] for row in run.arm("gpt dynamic")), "words"
    ),
    "heat.first": heat(lambda run: fmean(row["found_inf"][0] for row in run.arm("gpt dynamic")), ".0f"),
    "interval.5.skip": interval(lambda run: skip_share(run.arm("G=5")), "%0"),
    "interval.2000.skip": interval(lambda run: skip_share(run.arm("G=2000")), "%1"),
    "interval.5.room": interval(lambda run: room(run.arm("G=5")), ".1f"),
    "interval.2000.room": interval(lambda run: room(run.arm("G=2000")), ".1f"),
    "interval.loss.spread": interval(interval_spread),
    "interval.product.t7.min": interval(lambda run: min(predicted_products(run)), ".3f"),
    "interval.product.t7.max": interval(lambda run: max(predicted_products(run)), ".3f"),
    "interval.product.min": interval(lambda run: min(products(run)), ".3f"),
    "interval.product.max": interval(lambda run: max(products(run)), ".3f"),
    "init.32.lost": init(lambda run: run.arm("sigmoid 2^32 G=20").mean("lost_steps"), ".0f"),
    "init.32.predicted": init(
        lambda run: fmean(row["predicted"]["lost_steps"] for row in run.arm("sigmoid 2^32 G=20")), ".0f"
    ),
    "init.0.20": init(lambda run: run.arm("sigmoid 2^0 G=20").mean("left_plateau"), ".0f"),
    "init.16.20": init(lambda run: run.arm("sigmoid 2^16 G=20").mean("left_plateau"), ".0f"),
    "init.0.50": init(lambda run: run.arm("sigmoid 2^0 G=50").mean("left_plateau"), ".0f"),
    "init.200.left": init(lambda run: run.arm("sigmoid 2^0 G=200").known("left_plateau"), "words"),
    "init.200.seeds": init(lambda run: len(run.arm("sigmoid 2^0 G=200")), "words"),
    "init.steps": init(lambda run: run.config["steps"], "<=d"),
    "storm.2.scale": storm(lambda run: max(last_scales(run.arm("storm 2"))), "2^"),
    "storm.2.min": storm(lambda run: run.arm("storm 2").min("test_loss")),
    "storm.2.max": storm(lambda run: run.arm("storm 2").max("test_loss")),
    "storm.floor.min": storm(lambda run: run.arm("storm 2 floor=2^8").min("test_loss")),
    "storm.floor.max": storm(lambda run: run.arm("storm 2 floor=2^8").max("test_loss")),
    "storm.short.min": storm(lambda run: run.arm("storm 2 G=4").min("test_loss")),
    "storm.short.max": storm(lambda run: run.arm("storm 2 G=4").max("test_loss")),
    "formats.fp16": Number("formats", lambda run: max(flushed(run, "fp16")), "<=%2"),
    "formats.e5m2": Number("formats", lambda run: max(flushed(run, "e5m2")), "<=%1"),
    "formats.e4m3": Number("formats", lambda run: max(flushed(run, "e4m3")), "<=%1"),
    "formats.e4m3.t9": Number("formats", predicted_at_worst, "%0"),
}
