"""What a late scale costs."""

from functools import partial

from figures.derived_numbers import late_losses
from paper.values import Number

stale = partial(Number, "staleness")
new_stale = partial(Number, "staleness@cpu-new-seeds")
pipeline = partial(Number, "async_depth")

NUMBERS: dict[str, Number] = {
    "stale.cumulative.4.headroom": stale(
        lambda run: run.arm("cumulative k=4").mean("headroom"), ".1f"
    ),
    "stale.cumulative.0.headroom": stale(
        lambda run: run.arm("cumulative k=0").mean("headroom"), ".1f"
    ),
    "stale.dedup.4.skip": stale(lambda run: run.arm("deduplicated k=4").mean("skip_rate"), "%1"),
    "stale.cumulative.4.skip": stale(lambda run: run.arm("cumulative k=4").mean("skip_rate"), "%1"),
    "stale.probe.4.skip": stale(lambda run: run.arm("probe k=4").mean("skip_rate"), "%1"),
    "stale.pairs": stale(lambda run: len(late_losses(run)), "d"),
    "stale.worse": stale(lambda run: sum(more > 0 for more in late_losses(run)), "d"),
    "stale.loss.worst": stale(lambda run: max(map(abs, late_losses(run))), "<=.3f"),
    "stale.loss.new": new_stale(lambda run: max(map(abs, late_losses(run))), "<=.3f"),
    "async.0": pipeline(lambda run: run.arm("depth 0").mean("test_loss"), ".3f"),
    "async.4": pipeline(lambda run: run.arm("depth 4").mean("test_loss"), ".3f"),
    "async.scale.4": pipeline(lambda run: run.arm("scale 4").mean("test_loss"), ".3f"),
    "async.seeds": pipeline(lambda run: len(run.seeds), "words"),
}
