"""Public logs under the state machine, and `ampsim explain` on runs with seeded faults."""

from collections.abc import Iterable
from functools import partial
from math import floor

from ampsim.core.json_lines import Record
from figures.derived_numbers import least_overflows
from figures.results import Result
from paper.values import Number

excerpts = partial(Number, "public_runs")
logs = partial(Number, "whole_logs")
explain = partial(Number, "explain_faults")

START = [23.0, 15.0, 14.0, 14.0, 14.0, 14.0]  # of five benchmark logs, by their tens of steps
SFT = "SFT, OPT-1.3B"


def usable(run: Result) -> list[Record]:
    """Return the excerpts with enough information for the state machine."""
    return [row for row in run.records if row["replayed"] is not None]


def repeated(run: Result) -> int:
    """Return in how many of these the state machine reproduces every printed scale."""
    return sum(row["replayed"] == row["log2_scale"] for row in usable(run))


def started_alike(run: Result) -> int:
    """Return how many of these are the same start-up of a benchmark."""
    return sum(row["log2_scale"][: len(START)] == START for row in usable(run))


def unreported(run: Result) -> list[Record]:
    """Return the excerpts that print no skip although the scale falls."""
    return [row for row in run.records if row["skips_proved"] and not sum(row["skips_printed"])]


def reported_elsewhere(run: Result) -> int:
    """Return how many of these name overflows in other lines."""
    return sum(row["overflow_steps"] is not None for row in unreported(run))


def other_settings(run: Result) -> list[bool]:
    """Return, for each setting that differs from a scaler's own, whether its log refutes it."""
    rules = [item for row in run.records for item in row["rules"].items()]
    return [result["refuted"] is not None for name, result in rules if name != "as set"]


def unrefuted(run: Result, factor: float) -> int:
    """Return how many logs do not refute the growth interval times a factor."""
    count = 0
    for row in run.records:
        interval = row["settings"]["growth_interval"] * factor
        count += row["rules"][f"G={interval:g}"]["refuted"] is None
    return count


def unprinted(run: Result) -> int:
    """Return how many overflows of the longest log have no step."""
    return sum(step is None for _, step, *_ in run.arm(SFT).the("events"))


def faults(run: Result) -> list[Record]:
    """Return the runs in which a fault was seeded."""
    return [row for row in run.records if row["arm"] != "healthy"]


def missed(rows: Iterable[Record]) -> int:
    """Return in how many runs `explain` finds no problem."""
    return sum(row["verdict"] == "healthy" for row in rows)


def unsure(run: Result) -> int:
    """Return how many healthy runs `explain` cannot decide."""
    return sum(row["verdict"] == "cannot tell" for row in run.arm("healthy"))


def named_first(run: Result) -> int:
    """Return in how many runs `explain` names the seeded fault first."""
    return sum(row["named"] == row["arm"] for row in faults(run))


def named_another(run: Result) -> int:
    """Return in how many runs `explain` names another fault first."""
    return sum(row["named"] not in ("healthy", row["arm"]) for row in faults(run))


def end_of_none(run: Result) -> float:
    """Return the end of the exact 95 % interval if no healthy run has a false finding."""
    share: float = 0.025 ** (1 / len(run.arm("healthy")))
    return 1 - share


NUMBERS: dict[str, Number] = {
    "public.excerpts": excerpts(lambda run: len(run.records), "d"),
    "public.usable": excerpts(lambda run: len(usable(run)), "words"),
    "public.equal": excerpts(repeated, "words"),
    "public.unreported": excerpts(lambda run: len(unreported(run)), "words"),
    "public.proved": excerpts(lambda run: sum(map(least_overflows, unreported(run))), ">=words"),
    "public.alike": excerpts(started_alike, "words"),
    "public.elsewhere": excerpts(reported_elsewhere, "words"),
    "logs.scalers": logs(lambda run: len(run.records), "words"),
    "logs.logs": logs(lambda run: len({row["source"] for row in run.records}), "words"),
    "logs.steps": logs(lambda run: sum(row["steps"] for row in run.records), ",d"),
    "logs.rules": logs(lambda run: len(other_settings(run)), "d"),
    "logs.rules.refuted": logs(lambda run: sum(other_settings(run)), "d"),
    "logs.unprinted": logs(unprinted, "d"),
    "logs.shorter": logs(lambda run: unrefuted(run, 0.99), "words"),
    "logs.longer": logs(lambda run: unrefuted(run, 1.01), "words"),
    "logs.sft.steps": logs(lambda run: run.arm(SFT).the("steps"), ",d"),
    "logs.sft.skips": logs(lambda run: run.arm(SFT).the("skipped"), "d"),
    "logs.sft.bound": logs(lambda run: floor(run.arm(SFT).the("bound")), "d"),
    "explain.healthy": explain(lambda run: len(run.arm("healthy")), "words"),
    "explain.false": explain(end_of_none, "<=%0"),
    "explain.unsure": explain(unsure, "words"),
    "explain.seeded": explain(lambda run: len(faults(run)), "d"),
    "explain.named": explain(named_first, "d"),
    "explain.other": explain(named_another, "words"),
    "explain.per-fault": explain(lambda run: len(run.arm("interval too long")), "words"),
    "explain.missed": explain(lambda run: missed(faults(run)), "d"),
    "explain.missed.spike": explain(lambda run: missed(run.arm("data spike")), "words"),
    "explain.missed.share": explain(lambda run: missed(faults(run)) / len(faults(run)), "%0"),
    "explain.missed.interval": explain(lambda run: missed(run.arm("interval too long")), "words"),
    "explain.missed.clip": explain(lambda run: missed(run.arm("scaled-clip")), "words"),
}
