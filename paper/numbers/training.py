"""The trained networks: underflow, a transformer, collapse, other rules."""

from functools import partial
from statistics import fmean, median

from figures.derived_numbers import policy_scores
from figures.results import ArmRecords, Result
from paper.values import Number

sigmoid = partial(Number, "sigmoid_underflow")
gpt = partial(Number, "gpt_fp16")
resnet = partial(Number, "resnet_fp16")
crash = partial(Number, "scale_crash")
bench = partial(Number, "policy_benchmark")
recorded = partial(Number, "recorded_thresholds")


def elements(arm: ArmRecords) -> int:
    """Return the number of gradient elements of all seeds."""
    return sum(sum(row["elements"]) for row in arm)


def checks(run: Result) -> list[int]:
    """Return by how many bits fp16 backward passes move the recorded thresholds, where they were
    tried.
    """
    return [bits for row in run.records for bits in row["checks"]]


def unused(run: Result, policy: str) -> float:
    """Return the mean number of bits that a policy leaves unused on recorded thresholds."""
    return fmean(policy_scores(run, policy, "unused"))


def lost(run: Result) -> int:
    """Return how many sigmoid networks end over one nat at a scale of 2^4."""
    return sum(loss > 1 for loss in run.arm("static 2^4").column("train_loss"))


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
    "gpt.fp32": gpt(lambda run: run.arm("fp32").mean("test_loss")),
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
    "crash.fp32.diverged.new": Number("scale_crash@cpu-new-seeds", diverged, "words"),
    "bench.50": bench(
        lambda run: median(policy_scores(run, "Rule G=50", "recovery")), ".0f"
    ),
}
