"""The trained networks: underflow, a transformer, collapse, other rules."""

from functools import partial
from statistics import fmean, median

from ampsim.core.formats import FP16
from figures.derived_numbers import gpt_apart, leading, policy_scores
from figures.results import ArmRecords, Result
from paper.values import Number

sigmoid = partial(Number, "sigmoid_underflow")
gpt = partial(Number, "gpt_fp16")
resnet = partial(Number, "resnet_fp16")
crash = partial(Number, "scale_crash")
bench = partial(Number, "policy_benchmark")
recorded = partial(Number, "recorded_thresholds")

DEFAULT = "Rule G=2000"  # torch's


def elements(arm: ArmRecords) -> int:
    """Return the number of gradient elements of all seeds."""
    return sum(sum(row["elements"]) for row in arm)


def zeros(arm: ArmRecords, step: int) -> int:
    """Return how many of them underflow at one counted step."""
    return sum(sum(row["zero"][step]) for row in arm)


def mean_zero(arm: ArmRecords) -> float:
    """Return the mean share of zeros over all counted steps of all seeds."""
    return fmean(share for row in arm for share in row["zero"])


def checks(run: Result) -> list[int]:
    """Return by how many bits fp16 backward passes move the recorded thresholds, where they were tried."""
    return [bits for row in run.records for bits in row["checks"]]


def unused(run: Result, policy: str) -> float:
    """Return the mean number of bits that a policy leaves unused on recorded thresholds."""
    return fmean(policy_scores(run, policy, "unused"))


def skipped_share(run: Result) -> float:
    """Return which share of the sigmoid networks' steps is skipped at a scale of 2^20."""
    return sum(run.arm("static 2^20").skips()) / (len(run.seeds) * int(run.config["steps"]))


def diverged(run: Result) -> int:
    """Return how many float32 runs at the highest rate end at a loss over 10."""
    return sum(row["loss"][-1] > 10 for row in run.arm("fp32 lr=0.05"))


def beyond_fp16(run: Result) -> int:
    """Return in how many of these the residual stream passes the largest number of fp16."""
    return sum(max(row["stream_max"]) > FP16.max_finite for row in run.arm("fp32 lr=0.05"))


def leading_skips(run: Result) -> list[int]:
    """Return how many steps a start at 2^32 skips at first, by seed."""
    return [leading(row) for row in run.arm("init 2^32")]


NUMBERS: dict[str, Number] = {
    "sigmoid.seeds": sigmoid(lambda run: len(run.seeds), "words"),
    "sigmoid.unscaled.zero": sigmoid(
        lambda run: zeros(run.arm("unscaled"), -1) / elements(run.arm("unscaled")), "%0"
    ),
    "sigmoid.unscaled.loss": sigmoid(lambda run: run.arm("unscaled").mean("train_loss")),
    "sigmoid.20.skips": sigmoid(skipped_share, "%0"),
    "gpt.steps": gpt(lambda run: run.config["steps"], "d"),
    "gpt.unscaled": gpt(lambda run: run.arm("unscaled").mean("test_loss")),
    "gpt.fp32": gpt(lambda run: run.arm("fp32").mean("test_loss")),
    "gpt.apart": gpt(gpt_apart, "<=.3f"),
    "gpt.unscaled.zero": gpt(lambda run: mean_zero(run.arm("unscaled")), "%2"),
    "gpt.global.unscaled": gpt(lambda run: run.arm("global unscaled").mean("test_loss")),
    "gpt.global.fp32": gpt(lambda run: run.arm("global fp32").mean("test_loss")),
    "gpt.global.dynamic": gpt(lambda run: run.arm("global dynamic").mean("test_loss")),
    "gpt.init32.first.min": gpt(lambda run: min(leading_skips(run)), ">=d"),
    "gpt.init32.first.max": gpt(lambda run: max(leading_skips(run)), "<=d"),
    "resnet.steps": resnet(lambda run: run.config["steps"], "d"),
    "resnet.unscaled": resnet(lambda run: run.arm("unscaled").mean("test_loss")),
    "resnet.fp32": resnet(lambda run: run.arm("fp32").mean("test_loss")),
    "resnet.global.unscaled": resnet(lambda run: run.arm("global unscaled").mean("test_loss")),
    "resnet.global.dynamic": resnet(lambda run: run.arm("global dynamic").mean("test_loss")),
    "crash.seeds": crash(lambda run: len(run.seeds), "words"),
    "crash.03": crash(lambda run: run.arm("fp16 lr=0.03").known("crash_step"), "words"),
    "crash.035": crash(lambda run: run.arm("fp16 lr=0.035").known("crash_step"), "words"),
    "crash.04": crash(lambda run: run.arm("fp16 lr=0.04").known("crash_step"), "words"),
    "crash.05.median": crash(lambda run: median(run.arm("fp16 lr=0.05").column("crash_step")), "d"),
    "crash.fp32.02": crash(
        lambda run: max(row["loss"][-1] for row in run.arm("fp32 lr=0.02")), "<=.2f"
    ),
    "crash.fp32.diverged": crash(diverged, "words"),
    "crash.fp32.above": crash(beyond_fp16, "words"),
    "bench.runs": bench(lambda run: len(policy_scores(run, DEFAULT, "skips")), "words"),
    "bench.networks": bench(lambda run: len(run.arm(DEFAULT).first["skips"]), "words"),
    "recorded.checks": recorded(lambda run: len(checks(run)), "d"),
    "recorded.agree": recorded(lambda run: checks(run).count(0), "d"),
    "bench.margin": bench(lambda run: unused(run, "Headroom 1 bit"), ".1f"),
    "bench.default": bench(lambda run: unused(run, DEFAULT), ".1f"),
    "bench.50": bench(lambda run: median(policy_scores(run, "Rule G=50", "recovery")), ".0f"),
    "bench.best": bench(lambda run: unused(run, "best rule"), ".1f"),
    "bench.best.skips": bench(
        lambda run: fmean(policy_scores(run, "best rule", "skips")) / 100, "%1"
    ),
}
