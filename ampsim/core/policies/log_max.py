"""A scale from the distribution of log2 max|gradient|: OpenSeq2Seq's LogMax."""

import math
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar, NamedTuple

from ampsim.core.arguments import as_float
from ampsim.core.machine import round_to_float32
from ampsim.core.policies.base import RELOAD, Memory, Observation, Policy


class LogMaxState(NamedTuple):
    """The memory of `LogMax`: averages of x = log2 max|gradient|, from 0 on, and the weight their start still has."""

    mean: float  # of x, over about 1 / (1 - beta1) steps
    slow_mean: float  # of x, over about 1 / (1 - beta2)
    square: float  # of x^2, over about 1 / (1 - beta2)
    weight1: float  # beta1^steps
    weight2: float  # beta2^steps


@dataclass(frozen=True, kw_only=True)
class LogMax(Policy):
    """A policy whose scale a normally distributed log2 max|gradient| passes with a fixed, small probability.

    S = 2^(log_max - mu - z sigma), with mean and deviation from exponential averages; z = 3.09 is a probability of
    0.001. OpenSeq2Seq's (NVIDIA/OpenSeq2Seq@2383d5d, `open_seq2seq/optimizers/automatic_loss_scaler.py`,
    arXiv:1805.10387), whose first scale is 1 and which rounds no scale to a power of two. This differs in two:

    1. An overflow counts as x = log_max + 1 - log2(used): twice the least it can have been. OpenSeq2Seq averages
       2^log_max = 65536 with logarithms, which holds the scale at ``min_scale`` for about 12 000 steps.
    2. A gradient that is all zeros is left out. There its logarithm, -inf, makes the scale NaN for ever.

    ``faithful=True`` does both as OpenSeq2Seq does, and has its 16 in place of ``log_max`` in S.

    Attributes:
        log_max: log2 of where the format ends.
        beta1: weight of the past in the average of x = log2 amax from which mu is.
        beta2: weight of the past in the averages of x and x^2 from which sigma is.
        overflow_std_dev: z, in standard deviations.
        faithful: whether to do 1 and 2 as OpenSeq2Seq does.
    """

    init_scale: float = 1.0
    min_scale: float = 1.0
    max_scale: float = 2.0**24
    log_max: float = 16.0
    beta1: float = 0.99
    beta2: float = 0.999
    overflow_std_dev: float = 3.09
    faithful: bool = False

    needs: ClassVar[tuple[str, ...]] = ("amax",)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            if not 0 <= as_float(name, getattr(self, name)) < 1:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: expected a number in [0, 1); OpenSeq2Seq's are .99, .999"
                )
        for name in ("log_max", "overflow_std_dev"):
            if not 0 <= as_float(name, getattr(self, name)) <= 120:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: expected a number from 0 to 120; the defaults are 16, 3.09"
                )

    def restored(self, name: str, like: float, number: object) -> float:
        value = as_float(name, number)
        if self.faithful and not math.isfinite(value):  # what OpenSeq2Seq's arithmetic ends in
            return value
        value = round_to_float32(value)
        if name in ("mean", "slow_mean"):  # logarithms have either sign
            if not math.isfinite(value):
                raise ValueError(f"{name}={number!r}: expected a finite number; {RELOAD}")
            return value
        return super().restored(name, like, number)

    def start(self, xp: ModuleType) -> LogMaxState:
        return LogMaxState(*(xp.float32(x) for x in (0, 0, 0, 1, 1)))

    def decide(
        self, xp: ModuleType, used: float, newest: float, memory: Memory, seen: Observation
    ) -> tuple[float, LogMaxState]:
        assert seen.amax is not None  # noqa: S101 - it is needed, so it was looked for
        lost = seen.found_inf | ~xp.isfinite(seen.amax)
        least = xp.float32(2.0**self.log_max) if self.faithful else self.log_max + 1 - xp.log2(used)
        x = xp.where(lost, least, xp.log2(seen.amax))
        m, b1, b2 = LogMaxState(*memory), self.beta1, self.beta2
        mean, slow_mean = b1 * m.mean + (1 - b1) * x, b2 * m.slow_mean + (1 - b2) * x
        after = LogMaxState(mean, slow_mean, b2 * m.square + (1 - b2) * (x * x), m.weight1 * b1, m.weight2 * b2)
        mu, slow = after.mean / (1 - after.weight1), after.slow_mean / (1 - after.weight2)
        # sigma^2 = E[x^2] - E[x]^2, both over the long window
        sigma = xp.sqrt(xp.maximum(after.square / (1 - after.weight2) - slow * slow, xp.float32(0)))
        scale = xp.exp2((16.0 if self.faithful else self.log_max) - (sigma * self.overflow_std_dev + mu))
        if self.faithful:
            return scale, after
        empty = ~lost & (seen.amax == 0)
        kept = (xp.where(empty, old, new) for old, new in zip(memory, after, strict=True))
        return xp.where(empty, newest, scale), LogMaxState(*kept)
