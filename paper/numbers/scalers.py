"""Dialects, recorded runs of scalers, and torch's scaler under the conformance suite."""

from collections.abc import Callable, Sequence
from functools import partial
from math import isinf

from ampsim.core import dialects
from ampsim.core.machine import Rule
from ampsim.core.replay.fold import states
from ampsim.frameworks.checks.judging import ENDS
from ampsim.testing import known_failures
from ampsim.testing.scaler_checks import CHECKS as SUITE
from figures import derived_numbers as q
from paper.values import Formula, Number

traces = partial(Number, "traces")

TORCH = dialects.get("torch.amp.GradScaler")
SHOWN = {  # dialect of the table of settings -> name
    "torch.amp.GradScaler": "torch",
    "apex.amp.LossScaler": "apex",
    "deepspeed.DynamicLossScaler": "DeepSpeed, ZeRO",
    "deepspeed.FP16_Optimizer": "DeepSpeed, no ZeRO",
    "megatron.core.DynamicGradScaler": "Megatron-core",
    "fairseq.DynamicLossScaler": "fairseq",
    "colossalai.DynamicGradScaler": "ColossalAI",
    "nemo.GradScaler": "NeMo",
    "mmcv.runner.LossScaler": "MMCV",
    "tf_keras.LossScaleOptimizer": "Keras 2",
    "keras.LossScaleOptimizer[jax]": "Keras 3",
    "flax.DynamicScale": "flax",
    "jmp.DynamicLossScale": "jmp",
    "paddle.amp.GradScaler[dygraph]": "Paddle",
    "mindspore.amp.DynamicLossScaleManager": "MindSpore",
    "mxnet.contrib.amp.LossScaler": "MXNet",
    "tf.contrib.ExponentialUpdateLossScaleManager": "TensorFlow 1",
    "roundpipe.GradScaler[async]": "RoundPipe",
}
BEYOND_DOUBLE = 1200  # more overflows in a row than any scale can be halved


def scales(rule: Rule, found_inf: Sequence[bool]) -> list[float]:
    """Return the newest scale after each step of a sequence."""
    return [state.newest for state in states(rule, found_inf)]


def overflows_until(rule: Rule, low: float) -> int:
    """Return how many overflows in a row take the scale from its start down to `low`."""
    falling = scales(rule, [True] * BEYOND_DOUBLE)
    return 1 + sum(scale > low for scale in falling)


def becomes_infinite(rule: Rule) -> bool:
    """Return whether a scale that grows in each step leaves float32 and is infinite."""
    growing = rule.replace(init_scale=2.0**126, growth_factor=2.0, growth_interval=1)
    return isinf(scales(growing, [False] * 9)[-1])


def becomes_zero(rule: Rule) -> bool:
    """Return whether overflow after overflow takes the scale to zero."""
    try:
        return scales(rule, [True] * BEYOND_DOUBLE)[-1] == 0
    except Exception:  # the dialect's own, of any type, at its minimum
        return False


def has_quirk(rule: Rule) -> bool:
    """Return whether a rule has a detail that is no parameter."""
    return bool(rule.quirks)


def is_plain(rule: Rule) -> bool:
    """Return whether a rule is the state machine with settings, and nothing else."""
    return not rule.quirks


def count(holds: Callable[[Rule], bool]) -> int:
    """Return how many dialects have a property with their defaults."""
    return sum(holds(dialects.get(name)) for name in dialects.names())


def torch_failures() -> str:
    """Return the names of the checks that torch's scaler fails, as words."""
    return ", ".join(name.replace("_", " ") for name in known_failures.TORCH)


def packages() -> set[str]:
    """Return the packages that dialects are of, by the first word of their names."""
    return {name.partition(".")[0] for name in dialects.names()}


NUMBERS: dict[str, Number | Formula] = {
    "dialects": Formula(lambda: len(dialects.names()), "d"),
    "dialects.shown": Formula(lambda: len(SHOWN), "d"),
    "dialects.quirks": Formula(partial(count, has_quirk), "d"),
    "dialects.settings": Formula(partial(count, is_plain), "d"),
    "dialects.packages": Formula(lambda: len(packages()), "d"),
    "field.infinite": Formula(partial(count, becomes_infinite), "words"),
    "field.zero": Formula(partial(count, becomes_zero), "d"),
    "torch.tiny": Formula(lambda: overflows_until(TORCH, 2.0**-128), "d"),
    "traces.count": traces(lambda run: len(run.records), ",d"),
    "traces.repeated": traces(
        lambda run: sum(row["repeated"] for row in run.records), ",d"
    ),
    "suite.checks": Formula(lambda: len(SUITE), "d"),
    "suite.torch": Formula(lambda: len(known_failures.TORCH), "d"),
    "suite.torch.names": Formula(torch_failures, "text"),
    "suite.torch.range": Formula(
        lambda: len(known_failures.TORCH.keys() & ENDS), "words"
    ),
    "emulated.overflow": Number("emulated_cuda", q.worst_emulation, "<=%2"),
}
