"""The tables of results, cell by cell: a cell is text, or a number with its function.

A new table is a function that returns it, and a row of `TABLES`. The text shows it by
``#datatable("name")[Its caption.]``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from math import isfinite
from statistics import fmean, median
from typing import Any
from urllib.parse import urlsplit

from ampsim.core import dialects
from ampsim.core.machine import Rule
from ampsim.core.theory import skip_rate
from figures.claim_results import judge_folder
from figures.claims import CLAIMS
from figures.derived_numbers import (
    INTERVALS,
    followed,
    policy_scores,
    rank_cells,
    rank_wrong,
    real_level,
    real_level_z,
    real_steps,
    real_z,
    t3_level,
    t3_rate,
)
from figures.results import DATA, Result
from figures.tables import TABLES as GALLERY
from paper import sources
from paper.field import survey
from paper.number_format import typeset
from paper.numbers import NUMBERS, artefact, conformance, loops, processors, theory
from paper.values import Cell, Formula, Number, Table

SOURCES = {  # of a check's requirement -> words of the table
    "torch": "torch's",
    "the package": "its own",
    "ours": "ours",
}
LOOP_CHECKS = (
    "gradients_do_not_depend_on_loss_scale",
    "skipped_step_changes_nothing",
    "resume_is_exact",
    "micro_batches_equal_one_batch",
    "step_changes_parameters",
)
OTHERS = (processors.SEEDS, "cpu-amd-epyc", "cpu-intel-xeon")
WORD = {True: "yes", False: "NO", None: "–"}


def real() -> Table:
    """Return skip rates and mean scales of real runs beside T3's."""
    of_text, of_new = partial(Number, "theory_real"), partial(Number, theory.NEW_SEEDS)

    def cells(interval: int) -> tuple[Cell, ...]:
        own = f"G={interval}"
        return (
            f"${interval}$",
            of_text(lambda run: 100 * run.arm(own).mean("skipped") / real_steps(run)),
            of_text(lambda run: 100 * t3_rate(run, interval, own)),
            of_text(lambda run: 100 * t3_rate(run, interval, "fp32")),
            Formula(lambda: 100 * skip_rate(Rule(growth_interval=interval))),
            of_text(lambda run: real_z(run, interval), ".1f"),
            of_new(lambda run: real_z(run, interval), ".1f"),
            of_text(lambda run: real_level(run, interval)),
            of_text(lambda run: t3_level(run, interval, own)),
            of_text(lambda run: t3_level(run, interval, "fp32")),
            of_text(lambda run: real_level_z(run, interval), ".1f"),
            of_new(lambda run: real_level_z(run, interval), ".1f"),
        )

    head = ("$G$", "run", "T3", "fp32", "T1", "$z$", "new", "run", "T3", "fp32", "$z$", "new")
    groups = (("", 1), ("skips, per cent", 6), ("mean $log_2 S$", 5))
    return Table(head, tuple(cells(g) for g in INTERVALS), "r" * len(head), groups)


def policies() -> Table:
    """Return the scores of policies on recorded thresholds."""
    stem = "policy_benchmark"

    def cells(name: str) -> tuple[Cell, ...]:
        def score(column: str, of: Callable[[Any], float], form: str) -> Number:
            return Number(stem, lambda run: of(policy_scores(run, name, column)), form)

        return (
            name,
            score("skips", fmean, ".2f"),
            score("unused", fmean, ".2f"),
            score("burst", max, "d"),
            Number(stem, lambda run: recovery(run, name), "text"),
        )

    def recovery(run: Result, name: str) -> str:
        steps = median(policy_scores(run, name, "recovery"))
        return f"{steps:.0f}" if isfinite(steps) else "never"

    head = ("policy", "skips, %", "unused, bits", "burst", "recovery, steps")
    return Table(head, tuple(map(cells, sources.load(stem).arms)), "lrrrr")


def checked() -> Table:
    """Return what was tested, with what, how many cases, and how many failed."""
    traces, cuda = partial(Number, "traces"), partial(Number, "cuda_runs")
    threads, ranks_cells = partial(Number, "threads"), partial(Number, "ranks_cells")
    rows: list[tuple[Cell, ...]] = []

    def add(by: str, what: str, cases: Number | Formula, failed: Number | Formula) -> None:
        rows.append((by, what, in_digits(cases), in_digits(failed)))

    add(
        "state machine",
        "recorded runs of scalers",
        NUMBERS["traces.count"],
        traces(unrepeated, "d"),
    )
    what = "public logs of CUDA runs, with the program's settings"
    add("state machine", what, NUMBERS["cuda.followed"], cuda(partial(contradicted, "breaks"), "d"))
    what = "skips of runs, beyond 2 $sigma$"
    add('#thm("T3")', what, *beyond_two(real_z))
    what = "mean scales of these, beyond 2 $sigma$"
    add('#thm("T3")', what, *beyond_two(real_level_z))
    what = "passes with torch, depth one, $G = 2$"
    cases = threads(lambda run: loops.passes(run, "checked", 1, 2), ",d")
    add("state machine", what, cases, threads(lambda run: loops.passes(run, "wrong", 1, 2), ",d"))
    what = "the same, $G = 2000$, its default"
    passes = "threads.torch.2000.1"
    add("state machine", what, NUMBERS[f"{passes}.checked"], NUMBERS[f"{passes}.wrong"])
    what = "installed scaler classes, not at the ends"
    add("checks", what, NUMBERS["conformance.classes"], NUMBERS["conformance.classes.away"])
    what = "loops of frameworks with a scaler"
    add("checks", what, NUMBERS["loops.loops"], NUMBERS["loops.failed"])
    what = "two ranks, torch's sharded scaler, FSDP1"
    add("checks", what, NUMBERS["ranks.FSDP1"], NUMBERS["ranks.FSDP1.wrong"])
    what = "the same, beyond its purpose"
    cases = ranks_cells(lambda run: beside_fsdp1(rank_cells(run, "torch")), "d")
    add("checks", what, cases, ranks_cells(lambda run: beside_fsdp1(rank_wrong(run, "torch")), "d"))
    what = "the same logs, with three times the interval"
    add(
        "state machine", what, NUMBERS["cuda.followed"], cuda(partial(contradicted, "control"), "d")
    )
    add("checks", "bugs that we seeded", NUMBERS["loops.bugs"], NUMBERS["loops.caught"])
    return Table(("tested with", "what was tested", "cases", "failed"), tuple(rows), "llrr")


def in_digits(number: Number | Formula) -> Number | Formula:
    """Return a number in digits that the text has in words."""
    return replace(number, form="d") if number.form == "words" else number


def unrepeated(run: Result) -> int:
    """Return how many recorded runs the state machine does not reproduce."""
    return sum(not row["repeated"] for row in run.records)


def contradicted(column: str, run: Result) -> int:
    """Return how many public CUDA runs contradict the state machine."""
    return sum(bool(row[column]) for row in followed(run))


def beside_fsdp1(cells: Sequence[dict[str, Any]]) -> int:
    """Return how many cells of torch's sharded scaler are not of FSDP1, which it is part of."""
    return sum(cell["cut"] != "FSDP1" for cell in cells)


def beyond_two(deviations: Callable[[Result, int], float]) -> tuple[Formula, Formula]:
    """Return the number of cases, and of those past two standard deviations.

    The second is a range where a case is so close to two that the error of z decides.
    """

    def zs() -> list[float]:
        return [deviations(sources.load(run), g) for run in theory.BOTH for g in INTERVALS]

    def failed() -> str:
        sure = sum(abs(z) > 2 for z in zs())
        close = sum(map(theory.edge_of_two, zs()))
        return f"{sure} to {sure + close}" if close else str(sure)

    return Formula(lambda: len(zs()), "d"), Formula(failed, "text")


def broken() -> Table:
    """Return the checks that scalers fail away from the ends of float32."""

    def cells(check: str) -> tuple[Cell, ...]:
        requirement = Number(
            "conformance",
            lambda run: SOURCES[conformance.promises(run)[check].partition(":")[0]],
            "text",
        )
        return (
            check.replace("_", " "),
            requirement,
            Number("conformance", lambda run: failing_scalers(run)[check], "text"),
        )

    rows = map(cells, failing_scalers(sources.load("conformance")))
    return Table(("check", "requirement", "failed by"), tuple(rows), "lll")


def failing_scalers(run: Result) -> dict[str, str]:
    """Return by check the scalers that fail it away from the ends; a star: with a stub."""
    scalers: dict[str, list[str]] = {}
    for row in conformance.installed(run):
        for check in conformance.away(run, row):
            scalers.setdefault(check, []).append(row["arm"] + "*" * bool(row["patched"]))
    return {
        check: ", ".join(sorted(scalers[check]))
        for check in conformance.promises(run)
        if check in scalers
    }


def bugs() -> Table:
    """Return the public threads whose bugs were seeded, by the check that catches them."""
    seeded = partial(Number, "loops")

    def cells(check: str) -> tuple[Cell, ...]:
        count = seeded(lambda run: len(threads_of(run, check)), "d")
        names = seeded(lambda run: ", ".join(dict.fromkeys(threads_of(run, check))), "text")
        return check.replace("_", " "), count, names

    return Table(("check", "bugs", "threads"), tuple(map(cells, LOOP_CHECKS)), "lrl")


def threads_of(run: Result, check: str) -> list[str]:
    """Return the threads of the bugs that a check catches, as repository and number."""
    threads = []
    for bug in loops.bugs(run):
        if bug["check"] == check:
            _, _, repository, _, number = urlsplit(bug["thread"]).path.split("/")
            threads.append(f"{repository} {number}")
    return threads


def compared_dialects() -> Table:
    """Return what the dialects do at the places where they differ."""

    def cells(name: str) -> tuple[Cell, ...]:
        return (
            f"`{name}`",
            Formula(lambda: dialects.get(name).init_scale, "2^"),
            Formula(lambda: dialects.ALL[name].rule.growth_interval, "d"),
            Formula(lambda: survey()[name].grows_at, "d"),
            Formula(lambda: dialects.get(name).hysteresis, "d"),
            Formula(lambda: survey()[name].reset, "text"),
            Formula(lambda: survey()[name].delay, "d"),
            Formula(lambda: survey()[name].top, "text"),
            Formula(lambda: survey()[name].bottom, "text"),
        )

    head = ("scaler", "start", "$G$", "grows at", "hysteresis", "reset by", "delay", "top")
    return Table((*head, "bottom"), tuple(map(cells, dialects.names())), "lrrcclcll")


def claims() -> Table:
    """Return the claims by device, in the order of the text, with the result of each."""

    def cells(place: int, name: str) -> tuple[Cell, ...]:
        claim = CLAIMS[name]
        now = Number(claim.stem, lambda run: claim.judge(run).now, "sentence")
        here = Number(claim.stem, lambda run: WORD[claim.judge(run).holds], "text")
        others = [Formula(partial(_word, name, folder), "text") for folder in OTHERS]
        return f"C{place}", typeset(claim.sentence), f"`{claim.stem}`", now, here, *others

    names = [name for name in sources.named("holds") if name in CLAIMS]
    rows = [cells(place, name) for place, name in enumerate(names, 1)]
    head = ("", "claim", "data", "result on common kernels", "holds", "seeds", "EPYC", "Xeon")
    return Table(head, tuple(rows), "llllcccc")


def _word(name: str, folder: str) -> str:
    """Return in a word whether a claim holds on data of new seeds or of another processor."""
    if CLAIMS[name].stem == "traces":
        return WORD[None]
    return WORD[_judged_folder(DATA / folder)[name].holds]


_judged_folder = cache(judge_folder)


def from_gallery(stem: str) -> Table:
    """Return a table of the gallery."""
    shown = GALLERY[stem](sources.load(stem))
    return Table(shown.columns, shown.rows, "l" * len(shown.columns))


TABLES: dict[str, Callable[[], Table]] = {
    "checked": checked,
    "broken": broken,
    "bugs": bugs,
    "claims": claims,
    "real": real,
    "policies": policies,
    "loops": partial(from_gallery, "loops"),
    "ranks_cells": partial(from_gallery, "ranks_cells"),
    "dialects": compared_dialects,
    "artefact": artefact.table,
    "seeds": processors.table,
}
