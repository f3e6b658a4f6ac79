"""Installed scalers under the checks of the conformance suite."""

from functools import partial

from ampsim.core.json_lines import Record
from figures.derived_numbers import BROKEN, adapters, ends, failed_checks
from figures.results import Result
from paper.values import Formula, Number

conformance = partial(Number, "conformance")

GRADIENT = "unscale_uses_scale_of_loss"
ARGUMENTS = {"invalid_arguments_raise", "neutral_factors_raise"}
INTENDED = ("xfailed",)
CHECKED = (*BROKEN, "passed", *INTENDED)
TITLES = {
    "colossalai": "ColossalAI",
    "mpx": "mpx",
    "deepspeed-fp16": "DeepSpeed's FP16 optimizer",
    "deepspeed-unfused": "DeepSpeed's unfused optimizer",
    "megatron-chained": "Megatron's chained optimizer",
}


def of_scalers(run: Result, *, ours: bool) -> list[Record]:
    """Return the rows of our scalers, or of the others'."""
    rows = adapters(run)
    return [row for row in rows if row["requirement"].startswith("ampsim") is ours]


def installed(run: Result) -> list[Record]:
    """Return the rows of the others' scalers."""
    return of_scalers(run, ours=False)


def distinct(run: Result, column: str) -> set[str]:
    """Return the different values that the others' scalers have in a column."""
    return {row[column] for row in installed(run)}


def failing_check(run: Result, check: str) -> set[str]:
    """Return the classes that fail a check."""
    return {row["class"] for row in installed(run) if check in failed_checks(row)}


def in_training(run: Result, row: Record) -> bool:
    """Return whether a scaler fails a check on something that training meets."""
    return bool(failed_checks(row) - ends(run) - ARGUMENTS)


def promises(run: Result) -> dict[str, str]:
    """Return by check the source of its requirement."""
    return dict(run.arm("checks").first["promises"])


def pairs(run: Result, outcomes: tuple[str, ...] = BROKEN) -> int:
    """Return how many pairs of a scaler and a check have one of these outcomes."""
    return sum(of_check(run, check, outcomes) for check in promises(run))


def of_check(run: Result, check: str, outcomes: tuple[str, ...] = BROKEN) -> int:
    """Return how many scalers have one of these outcomes in a check."""
    cells = [
        row["checks"][check]["outcome"]
        for row in installed(run)
        if check in row["checks"]
    ]
    return sum(outcome in outcomes for outcome in cells)


NUMBERS: dict[str, Number | Formula] = {
    "conformance.scalers": conformance(lambda run: len(installed(run)), "d"),
    "conformance.packages": conformance(
        lambda run: len(distinct(run, "requirement")), "d"
    ),
    "conformance.classes": conformance(lambda run: len(distinct(run, "class")), "d"),
    "conformance.patched": conformance(
        lambda run: sum(bool(row["patched"]) for row in installed(run)), "d"
    ),
    "conformance.sequences": conformance(lambda run: run.config["histories"], ",d"),
    "conformance.equal": conformance(
        lambda run: sum(not row["drift"]["differing"] for row in installed(run)), "d"
    ),
    "conformance.checks": conformance(lambda run: len(promises(run)), "d"),
    "conformance.checked": conformance(lambda run: pairs(run, CHECKED), ",d"),
    "conformance.unrun": conformance(
        lambda run: len(installed(run)) * len(promises(run)) - pairs(run, CHECKED),
        "d",
    ),
    "conformance.failed": conformance(pairs, "d"),
    "conformance.intended": conformance(lambda run: pairs(run, INTENDED), "d"),
    "conformance.training": conformance(
        lambda run: sum(in_training(run, row) for row in installed(run)), "d"
    ),
    "conformance.gradient.classes": conformance(
        lambda run: len(failing_check(run, GRADIENT)), "words"
    ),
}
