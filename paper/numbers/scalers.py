"""Dialects, recorded runs of scalers, and torch's scaler under the conformance suite."""

from collections.abc import Iterable
from functools import partial

from ampsim.core import dialects
from ampsim.frameworks.checks.judging import CHECKS, ENDS
from ampsim.testing import known_failures
from ampsim.testing.scaler_checks import CHECKS as SUITE
from figures import derived_numbers as q
from paper.field import Behavior, overflows_until, survey
from paper.numbers.conformance import ARGUMENTS
from paper.values import Formula, Number

traces = partial(Number, "traces")

TORCH = dialects.get("torch.amp.GradScaler")
OWN_INTERFACE = {
    ARGUMENTS,
    "last_step_reports_skip",
}  # requirements of ours that no other scaler need meet


def behaviors() -> list[Behavior]:
    """Return the behavior of each dialect."""
    return [*survey().values()]


def deepspeed() -> list[Behavior]:
    """Return the behavior of each of DeepSpeed's dialects."""
    return [behavior for name, behavior in survey().items() if name.startswith("deepspeed")]


def grow_late(rows: Iterable[Behavior]) -> int:
    """Return how many scalers grow after more finite steps than the interval, which is three."""
    return sum(behavior.grows_at > 3 for behavior in rows)


def other_factors() -> int:
    """Return how many dialects have other factors than two and a half."""
    rules = [dialects.get(name) for name in dialects.names()]
    return sum((rule.growth_factor, rule.backoff_factor) != (2.0, 0.5) for rule in rules)


def failed_at(level: int) -> int:
    """Return how many checks of a level torch's scaler fails."""
    return sum(SUITE[name].level == level for name in known_failures.TORCH)


def failed_away() -> set[str]:
    """Return the checks that torch's scaler fails by the rule of the conformance table.

    These checks are away from the ends of float32 and do not require our interface.
    """
    return {*known_failures.TORCH} - ENDS - OWN_INTERFACE


def failed_names() -> str:
    """Return the names of these checks."""
    return "; ".join(sorted(failed_away())).replace("_", " ")


NUMBERS: dict[str, Number | Formula] = {
    "dialects": Formula(lambda: len(behaviors()), "d"),
    "field.behaviors": Formula(lambda: len({*behaviors()}), "d"),
    "field.late": Formula(lambda: grow_late(behaviors()), "words"),
    "field.deepspeed": Formula(lambda: len(deepspeed()), "words"),
    "field.deepspeed.late": Formula(lambda: grow_late(deepspeed()), "words"),
    "field.factors": Formula(other_factors, "words"),
    "field.infinite": Formula(lambda: sum(row.top == "infinite" for row in behaviors()), "words"),
    "field.zero": Formula(lambda: sum(row.bottom == "zero" for row in behaviors()), "d"),
    "field.raises": Formula(lambda: sum(row.bottom == "raises" for row in behaviors()), "words"),
    "field.delayed": Formula(lambda: sum(row.delay == 1 for row in behaviors()), "words"),
    "torch.tiny": Formula(lambda: overflows_until(TORCH, 2.0**-128), "d"),
    "torch.zero": Formula(lambda: overflows_until(TORCH, 0.0), "d"),
    "traces.count": traces(lambda run: len(run.records), ",d"),
    "traces.repeated": traces(lambda run: sum(row["repeated"] for row in run.records), ",d"),
    "traces.updates": traces(lambda run: sum(row["updates"] for row in run.records), ",d"),
    "suite.checks": Formula(lambda: len(SUITE), "d"),
    "suite.torch": Formula(lambda: len(known_failures.TORCH), "d"),
    "suite.torch.level1": Formula(lambda: failed_at(1), "words"),
    "suite.torch.level2": Formula(lambda: failed_at(2), "words"),
    "suite.torch.level3": Formula(lambda: failed_at(3), "words"),
    "suite.torch.level4": Formula(lambda: failed_at(4), "words"),
    "suite.torch.level5": Formula(lambda: failed_at(5), "words"),
    "suite.torch.own": Formula(lambda: len(OWN_INTERFACE & known_failures.TORCH.keys()), "words"),
    "suite.torch.away": Formula(lambda: len(failed_away()), "words"),
    "suite.torch.excluded": Formula(
        lambda: len(known_failures.TORCH.keys() - CHECKS.keys()), "words"
    ),
    "suite.torch.excluded.away": Formula(lambda: len(failed_away() - CHECKS.keys()), "words"),
    "suite.torch.beside": Formula(lambda: len(known_failures.TORCH.keys() - ENDS), "words"),
    "suite.torch.named": Formula(failed_names, "text"),
    "suite.torch.range": Formula(lambda: len(known_failures.TORCH.keys() & ENDS), "words"),
    "emulated.overflow": Number("emulated_cuda", q.worst_emulation, "<=%2"),
}
