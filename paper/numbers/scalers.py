"""Dialects, recorded runs of scalers, and torch's scaler under the conformance suite."""

from functools import partial

from ampsim.core import dialects
from ampsim.frameworks.checks.judging import ENDS
from ampsim.testing import known_failures
from ampsim.testing.scaler_checks import CHECKS as SUITE
from figures import derived_numbers as q
from paper.field import Behavior, overflows_until, survey
from paper.values import Formula, Number

traces = partial(Number, "traces")

TORCH = dialects.get("torch.amp.GradScaler")


def behaviors() -> list[Behavior]:
    """Return the behavior of each dialect."""
    return [*survey().values()]


def deepspeed() -> list[Behavior]:
    """Return the behavior of each of DeepSpeed's dialects."""
    return [
        behavior for name, behavior in survey().items() if name.startswith("deepspeed")
    ]


NUMBERS: dict[str, Number | Formula] = {
    "dialects": Formula(lambda: len(behaviors()), "d"),
    "field.behaviors": Formula(lambda: len({*behaviors()}), "d"),
    "field.infinite": Formula(
        lambda: sum(row.top == "infinite" for row in behaviors()), "words"
    ),
    "field.zero": Formula(
        lambda: sum(row.bottom == "zero" for row in behaviors()), "d"
    ),
    "torch.tiny": Formula(lambda: overflows_until(TORCH, 2.0**-128), "d"),
    "traces.count": traces(lambda run: len(run.records), ",d"),
    "traces.repeated": traces(
        lambda run: sum(row["repeated"] for row in run.records), ",d"
    ),
    "suite.checks": Formula(lambda: len(SUITE), "d"),
    "suite.torch": Formula(lambda: len(known_failures.TORCH), "d"),
    "suite.torch.range": Formula(
        lambda: len(known_failures.TORCH.keys() & ENDS), "words"
    ),
    "emulated.overflow": Number("emulated_cuda", q.worst_emulation, "<=%2"),
}
