"""The tables of results, cell by cell; a cell is text, or a number with its function."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from ampsim.core import dialects
from ampsim.core.machine import Rule
from ampsim.core.theory import skip_rate
from figures.claims import CLAIMS
from figures.quantities import (
    INTERVALS,
    broken_laws,
    ends,
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
from figures.verdicts import judge_folder
from paper import sources
from paper.field import survey
from paper.numbers import artefact, loops, processors, ranks, runs, scalers, theory
from paper.printed import typeset
from paper.values import Cell, Formula, Number, Table


def _real() -> Table:
    def cells(interval: int) -> tuple[Cell, ...]:
        own = f"G={interval}"
        return (
            f"${interval}$",
            Number("theory_real", lambda run: 100 * run.arm(own).mean("skipped") / real_steps(run)),
            Number("theory_real", lambda run: 100 * t3_rate(run, interval, own)),
            Number("theory_real", lambda run: 100 * t3_rate(run, interval, "fp32")),
            Formula(lambda: 100 * skip_rate(Rule(growth_interval=interval))),
            Number("theory_real", lambda run: real_z(run, interval), ".1f"),
            Number(theory.NEW_SEEDS, lambda run: real_z(run, interval), ".1f"),
            Number("theory_real", lambda run: real_level(run, interval)),
            Number("theory_real", lambda run: t3_level(run, interval, own)),
            Number("theory_real", lambda run: t3_level(run, interval, "fp32")),
            Number("theory_real", lambda run: real_level_z(run, interval), ".1f"),
            Number(theory.NEW_SEEDS, lambda run: real_level_z(run, interval), ".1f"),
        )

    head = ("$G$", "run", "T3", "fp32", "T1", "$z$", "new", "run", "T3", "fp32", "$z$", "new")
    groups = (("", 1), ("skips, per cent", 6), ("mean $log_2 S$", 5))
    return Table(head, tuple(cells(g) for g in INTERVALS), "rrrrrrrrrrrr", groups)


def _judged() -> Table:
    """Return what judged what, how much of it, and how much failed."""

    def beyond(what: str, deviations: Callable[[Result, int], float]) -> tuple[Cell, ...]:
        zs = [deviations(sources.load(run), g) for run in theory.BOTH for g in INTERVALS]
        sure, at_most = sum(abs(z) > 2 for z in zs), sum(abs(z) > 2 or theory.edge_of_two(z) for z in zs)
        failed = str(sure) if sure == at_most else f"{sure} to {at_most}"
        cases = Formula(lambda: len(zs), "d")
        return '#thm("T3")', what, cases, Formula(lambda: failed, "text")

    def passes(interval: int, what: str) -> tuple[Cell, ...]:
        arm = f"torch depth 1 G={interval}"
        asked = Number("threads", lambda run: sum(run.arm(arm).column("checked")), ",d")
        return "machine", what, asked, Number("threads", lambda run: sum(run.arm(arm).column("wrong")), ",d")

    rows: tuple[tuple[Cell, ...], ...] = (
        ("machine", "recorded runs of scalers", scalers.NUMBERS["traces.count"],
         Number("traces", lambda run: sum(not row["repeated"] for row in run.records), "d")),
        ("machine", "public logs, with the run's own settings", Number("whole_logs", lambda run: len(run.records), "d"),
         Number("whole_logs", lambda run: sum(
             row["rules"]["as set"]["refuted"] is not None for row in run.records), "d")),
        beyond("skips of runs, beyond 2 $sigma$", real_z),
        beyond("mean scales of these, beyond 2 $sigma$", real_level_z),
        passes(2, "torch's passes on threads, depth one, $G = 2$"),
        passes(2000, "the same, $G = 2000$, its default"),
        ("laws", "installed scaler classes, not at the ends", scalers.NUMBERS["atlas.classes"],
         scalers.NUMBERS["atlas.classes.away"]),
        ("laws", "loops of frameworks with a scaler", replace(loops.NUMBERS["loops.loops"], form="d"),
         replace(loops.NUMBERS["loops.broken"], form="d")),
        ("laws", "two ranks, torch's sharded scaler, FSDP1", ranks.NUMBERS["ranks.FSDP1"],
         ranks.NUMBERS["ranks.FSDP1.wrong"]),
        ("laws", "the same, beyond its purpose", Number("ranks_cells", lambda run: beside(run, rank_cells), "d"),
         Number("ranks_cells", lambda run: beside(run, rank_wrong), "d")),
        ("machine", "the same logs, with other settings", runs.NUMBERS["logs.rules"],
         runs.NUMBERS["logs.rules.refuted"]),
        ("laws", "bugs that we planted", loops.NUMBERS["loops.bugs"], loops.NUMBERS["loops.caught"]),
    )  # fmt: skip
    return Table(("by", "what is judged", "cases", "failed"), rows, "llrr")


def beside(run: Result, cells: Callable[[Result, str], list[dict[str, Any]]]) -> int:
    """Return how many of these cells of torch's sharded scaler are not of FSDP1, which it is part of."""
    return sum(cell["cut"] != "FSDP1" for cell in cells(run, "torch"))


WHOSE = {"torch": "torch's", "the package": "its own", "ours": "ours"}  # who promises a law -> in words


def _broken() -> Table:
    """Return the laws that scalers break away from the ends of float32, by their names in the atlas."""

    def cells(law: str) -> tuple[Cell, ...]:
        whose = Number("atlas", lambda run: WHOSE[run.arm("laws").first["promises"][law].partition(":")[0]], "text")
        return law.replace("_", " "), whose, Number("atlas", lambda run: breakers(run)[law], "text")

    return Table(("law", "whose", "broken by"), tuple(map(cells, breakers(sources.load("atlas")))), "lll")


def breakers(run: Result) -> dict[str, str]:
    """Return by law the scalers that break it away from the ends, with a star where one was driven through a stub."""
    found: dict[str, list[str]] = {}
    for row in scalers.installed(run):
        for law in broken_laws(row) - ends(run):
            found.setdefault(law, []).append(row["arm"] + "*" * bool(row["patched"]))
    return {law: ", ".join(sorted(found[law])) for law in run.arm("laws").first["promises"] if law in found}


LOOP_LAWS = (
    "scale_is_invisible", "skipped_step_never_happened", "resume_is_invisible", "splitting_is_invisible", "it_learns",
)  # fmt: skip


def _bugs() -> Table:
    """Return the public threads whose bugs were planted, by the law that catches them."""

    def cells(law: str) -> tuple[Cell, ...]:
        return (
            law.replace("_", " "),
            Number("loops", lambda run: len(of_law(run, law)), "d"),
            Number("loops", lambda run: ", ".join(dict.fromkeys(map(_thread, of_law(run, law)))), "text"),
        )

    return Table(("law", "bugs", "threads"), tuple(map(cells, LOOP_LAWS)), "lrl")


def of_law(run: Result, law: str) -> list[str]:
    """Return the threads of the bugs that a law catches."""
    return [bug["thread"] for bug in run.arm("bugs").first["bugs"].values() if bug["law"] == law]


def _thread(address: str) -> str:
    """Return the repository and number of a thread."""
    _, _, repository, _, number = urlsplit(address).path.split("/")
    return f"{repository} {number}"


def _dialects() -> Table:
    def cells(name: str) -> tuple[Cell, ...]:
        return (
            f"`{name}`",
            Formula(lambda: dialects.get(name).init_scale, "2^"),
            Formula(lambda: dialects.ALL[name].rule.growth_interval, "d"),
            Formula(lambda: survey()[name].grows_at, "d"),
            Formula(lambda: dialects.get(name).hysteresis, "d"),
            Formula(lambda: survey()[name].refill, "text"),
            Formula(lambda: survey()[name].delay, "d"),
            Formula(lambda: survey()[name].top, "text"),
            Formula(lambda: survey()[name].bottom, "text"),
        )

    head = ("scaler", "start", "$G$", "grows at", "patience", "refilled by", "delay", "top", "bottom")
    return Table(head, tuple(map(cells, dialects.names())), "lrrcclcll")


def _claims() -> Table:
    """Return the sentences that the data is asked about at each build, by device, in the order of the text."""

    def cells(place: int, name: str) -> tuple[Cell, ...]:
        claim = CLAIMS[name]
        now = Number(claim.stem, lambda run: claim.judge(run).now, "sentence")
        here = Number(claim.stem, lambda run: WORD[claim.judge(run).holds], "text")
        sentence = typeset(claim.sentence)
        return f"C{place}", sentence, f"`{claim.stem}`", now, here, *(there(name, folder) for folder in OTHERS)

    def there(name: str, folder: str) -> Cell:
        return Formula(lambda: _word(name, folder), "text")

    rows = (cells(place, name) for place, name in enumerate(sources.named("holds"), 1) if name in CLAIMS)
    head = ("", "claim", "data", "common kernels: now", "holds", "seeds", "EPYC", "Xeon")
    return Table(head, tuple(rows), "llllcccc")


OTHERS = (processors.SEEDS, "cpu-amd-epyc", "cpu-intel-xeon")
WORD = {True: "yes", False: "NO", None: "–"}


def _word(name: str, folder: str) -> str:
    """Return in a word whether a claim holds on data of new seeds or of another processor."""
    if CLAIMS[name].stem == "traces":
        return WORD[None]
    return WORD[_judged_folder(DATA / folder)[name].holds]


_judged_folder = cache(judge_folder)


TABLES = {
    "judged": _judged(),
    "broken": _broken(),
    "bugs": _bugs(),
    "claims": _claims(),
    "real": _real(),
    "dialects": _dialects(),
    "artefact": artefact.table(),
    "seeds": processors.table(),
}
