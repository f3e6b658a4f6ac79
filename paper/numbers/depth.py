"""What a late scale costs."""

from functools import partial

from paper.values import Number

pipeline = partial(Number, "async_depth")

NUMBERS: dict[str, Number] = {
    "async.0": pipeline(lambda run: run.arm("depth 0").mean("test_loss"), ".3f"),
    "async.4": pipeline(lambda run: run.arm("depth 4").mean("test_loss"), ".3f"),
    "async.scale.4": pipeline(lambda run: run.arm("scale 4").mean("test_loss"), ".3f"),
}
