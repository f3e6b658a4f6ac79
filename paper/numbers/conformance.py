"""Installed scalers under the checks of the kit."""

from functools import partial

from ampsim.frameworks.checks.judging import UNASKED
from ampsim.records import Record
from figures.derived_numbers import BROKEN, ends, failed_checks
from figures.results import Result
from paper.values import Formula, Number

conformance = partial(Number, "conformance")

COUNTING = "growth_waits_for_interval"
DELAY = "in force one update later"  # so RoundPipe's package documents it
RESUMED = "state_dict_continues_run"
CONSTANTS = "invalid_arguments_raise"
GRADIENT = "unscale_uses_scale_of_loss"
BELOW_ONE = "no_nonfinite_step_below_scale_one"
CHOSEN = ("xfailed",)
ASKED = (*BROKEN, "passed", *CHOSEN)
TITLES = {
    "colossalai": "ColossalAI",
    "mpx": "mpx",
    "deepspeed-fp16": "DeepSpeed's FP16 optimizer",
    "deepspeed-unfused": "its unfused one",
    "megatron-chained": "Megatron's chained one",
}


def of_scalers(run: Result, *, ours: bool) -> list[Record]:
    """Return the rows of our scalers, or of the others'."""
    rows = [row for row in run.records if row["arm"] != "checks"]
    return [row for row in rows if row["requirement"].startswith("ampsim") is ours]


def installed(run: Result) -> list[Record]:
    """Return the rows of the others' scalers."""
    return of_scalers(run, ours=False)


def each(run: Result, column: str) -> set[str]:
    """Return the different values that the others' scalers have in a column."""
    return {row[column] for row in installed(run)}


def away(run: Result, row: Record) -> set[str]:
    """Return the checks that a scaler breaks away from the ends of float32."""
    return failed_checks(row) - ends(run)


def breaking(run: Result) -> set[str]:
    """Return the classes that break a check away from the ends."""
    return {row["class"] for row in installed(run) if away(run, row)}


def breaking_law(run: Result, check: str) -> set[str]:
    """Return the classes that break a check."""
    return {row["class"] for row in installed(run) if check in failed_checks(row)}


def only(run: Result, checks: set[str]) -> set[str]:
    """Return the classes that break, away from the ends, only checks among these."""
    others = {row["class"] for row in installed(run) if away(run, row) - checks}
    return breaking(run) - others


def counting(run: Result) -> set[str]:
    """Return the classes whose only break is to grow at another clean step."""
    return only(run, {COUNTING})


def late(run: Result) -> set[str]:
    """Return the classes that break only checks that RoundPipe's delay breaks."""
    roundpipe = run.arm("roundpipe").the("checks")
    checks = {check for check, found in roundpipe.items() if DELAY in (found["reason"] or "")}
    return only(run, checks) - counting(run)


def erring(run: Result) -> set[str]:
    """Return the classes whose only breaks are errors that they raise under a stub."""
    sure = set()
    for row in installed(run):
        for check in away(run, row):
            if not row["patched"] or not row["checks"][check]["seen"].startswith("raised "):
                sure.add(row["class"])
    return breaking(run) - sure


def more(run: Result) -> set[str]:
    """Return the classes that break a check in another way than by counting, delay, or an error."""
    return breaking(run) - counting(run) - late(run) - erring(run)


def patched(run: Result, classes: set[str]) -> int:
    """Return how many of these classes were driven with a stub."""
    return len({row["class"] for row in installed(run) if row["patched"]} & classes)


def whether_torch(run: Result) -> str:
    """Return whether torch's scaler breaks a check away from the ends, in words."""
    return "among them" if "torch" in breaking(run) else "not among them"


def promises(run: Result) -> dict[str, str]:
    """Return by check whose promise it is, and where it is made."""
    return dict(run.arm("checks").first["promises"])


def promised(run: Result, whose: str) -> int:
    """Return how many checks are promised by torch, by the package, or are ours."""
    return sum(promise.partition(":")[0] == whose for promise in promises(run).values())


def pairs(run: Result, outcomes: tuple[str, ...] = BROKEN) -> int:
    """Return how many pairs of a scaler and a check come out so."""
    return sum(of_check(run, check, outcomes) for check in promises(run))


def of_check(run: Result, check: str, outcomes: tuple[str, ...] = BROKEN) -> int:
    """Return how many scalers come out so by a check."""
    found = [row["checks"][check]["outcome"] for row in installed(run) if check in row["checks"]]
    return sum(outcome in outcomes for outcome in found)


def titles(names: set[str]) -> str:
    """Return the titles of scalers in a row."""
    *first, last = (TITLES[name] for name in TITLES if name in names)
    if len(first) + 1 != len(names):
        raise KeyError(f"{sorted(names)}: expected a title of each in TITLES")
    return f"{', '.join(first)} and {last}"


def broken_by_ours(run: Result) -> int:
    """Return how many checks our scalers break."""
    return sum(len(failed_checks(row)) for row in of_scalers(run, ours=True))


NUMBERS: dict[str, Number | Formula] = {
    "conformance.scalers": conformance(lambda run: len(installed(run)), "d"),
    "conformance.packages": conformance(lambda run: len(each(run, "requirement")), "d"),
    "conformance.classes": conformance(lambda run: len(each(run, "class")), "d"),
    "conformance.keras": conformance(
        lambda run: sum(row["class"] == "keras-jax" for row in installed(run)), "words"
    ),
    "conformance.patched": conformance(
        lambda run: sum(bool(row["patched"]) for row in installed(run)), "d"
    ),
    "conformance.live": conformance(lambda run: sum(row["live"] for row in installed(run)), "d"),
    "conformance.histories": conformance(lambda run: run.config["histories"], ",d"),
    "conformance.equal": conformance(
        lambda run: sum(not row["drift"]["differing"] for row in installed(run)), "d"
    ),
    "conformance.checks": conformance(lambda run: len(promises(run)), "d"),
    "conformance.checks.torch": conformance(lambda run: promised(run, "torch"), "d"),
    "conformance.checks.package": conformance(lambda run: promised(run, "the package"), "d"),
    "conformance.checks.ours": conformance(lambda run: promised(run, "ours"), "d"),
    "conformance.unasked": Formula(lambda: len(UNASKED), "words"),
    "conformance.asked": conformance(lambda run: pairs(run, ASKED), ",d"),
    "conformance.broken": conformance(pairs, "d"),
    "conformance.declared": conformance(lambda run: pairs(run, CHOSEN), "d"),
    "conformance.constants": conformance(lambda run: of_check(run, CONSTANTS, CHOSEN), "d"),
    "conformance.ends": conformance(
        lambda run: sum(of_check(run, check) for check in ends(run)), "d"
    ),
    "conformance.below-one": conformance(lambda run: of_check(run, BELOW_ONE), "d"),
    "conformance.below-one.asked": conformance(lambda run: of_check(run, BELOW_ONE, ASKED), "d"),
    "conformance.ours": conformance(broken_by_ours, "words"),
    "conformance.torch": conformance(whether_torch, "text"),
    "conformance.classes.away": conformance(lambda run: len(breaking(run)), "d"),
    "conformance.classes.patched": conformance(lambda run: patched(run, breaking(run)), "words"),
    "conformance.classes.erring": conformance(lambda run: len(erring(run)), "words"),
    "conformance.classes.sure": conformance(lambda run: len(breaking(run) - erring(run)), "words"),
    "conformance.classes.counting": conformance(lambda run: len(counting(run)), "words"),
    "conformance.classes.late": conformance(lambda run: len(late(run)), "words"),
    "conformance.classes.more": conformance(lambda run: len(more(run)), "words"),
    "conformance.gradient.classes": conformance(
        lambda run: len(breaking_law(run, GRADIENT)), "words"
    ),
    "conformance.gradient.names": conformance(
        lambda run: titles(breaking_law(run, GRADIENT)), "text"
    ),
    "conformance.gradient.patched": conformance(
        lambda run: patched(run, breaking_law(run, GRADIENT)), "words"
    ),
    "conformance.resumed": conformance(lambda run: of_check(run, RESUMED), "words"),
    "conformance.resumed.erring": conformance(
        lambda run: len(erring(run) & breaking_law(run, RESUMED)), "words"
    ),
}
