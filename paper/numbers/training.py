"""The trained networks: underflow, a transformer, collapse, other rules."""

from functools import partial
from statistics import fmean, median

from figures.derived_numbers import policy_scores
from figures.results import Result
from paper.values import Number

sigmoid = partial(Number, "sigmoid_underflow")
gpt = partial(Number, "gpt_fp16")
resnet = partial(Number, "resnet_fp16")
crash = partial(Number, "scale_crash")
bench = partial(Number, "policy_benchmark")


def diverged(run: Result) -> int:
    """Return how many float32 runs at the highest rate have a mean loss over 10 in the last ten
    steps.
    """
    return sum(fmean(row["loss"][-10:]) > 10 for row in run.arm("fp32 lr=0.05"))


NUMBERS: dict[str, Number] = {
    "sigmoid.unscaled.loss": sigmoid(
        lambda run: run.arm("unscaled").mean("train_loss")
    ),
    "gpt.unscaled": gpt(lambda run: run.arm("unscaled").mean("test_loss")),
    "gpt.global.unscaled": gpt(
        lambda run: run.arm("global unscaled").mean("test_loss")
    ),
    "gpt.global.dynamic": gpt(lambda run: run.arm("global dynamic").mean("test_loss")),
    "resnet.global.unscaled": resnet(
        lambda run: run.arm("global unscaled").mean("test_loss")
    ),
    "resnet.global.dynamic": resnet(
        lambda run: run.arm("global dynamic").mean("test_loss")
    ),
    "crash.seeds": crash(lambda run: len(run.seeds), "words"),
    "crash.05.median": crash(
        lambda run: median(run.arm("fp16 lr=0.05").column("crash_step")), "d"
    ),
    "crash.fp32.diverged": crash(diverged, "words"),
    "bench.50": bench(
        lambda run: median(policy_scores(run, "Rule G=50", "recovery")), ".0f"
    ),
}
