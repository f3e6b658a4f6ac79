"""The field's scalers, what was recorded of them, and what goes wrong with them."""

from math import floor, log2

from ampsim.card import claims as card
from ampsim.core import dialects
from ampsim.peers.laws.judging import ENDS
from ampsim.records import Record
from figures.quantities import (
    BROKEN,
    broken_laws,
    census,
    ends,
    half_width,
    least_overflows,
    parted_runs,
    race_costs,
    rank_cells,
    rank_wrong,
    total,
)
from figures.results import Result
from paper.field import overflows_until, survey
from paper.ledger import Formula, Number

GRADIENT = "unscale_divides_by_the_scale_of_the_loss"
ASKED = (*BROKEN, "passed", "expected failure")
TITLES = {
    "colossalai": "ColossalAI", "mpx": "mpx", "deepspeed-fp16": "DeepSpeed's FP16 optimizer",
    "deepspeed-unfused": "its unfused one", "megatron-chained": "Megatron's chained one",
}  # fmt: skip
START = [23.0, 15.0, 14.0, 14.0, 14.0, 14.0]  # of five benchmark logs, by their tens of steps
SFT = "SFT, OPT-1.3B"
SWEEP = "torch: 0, 1, 2 ... overflows, then clean"


def _wrong(run: Result, depth: int, interval: int) -> float:
    """Return the share of passes that torch's scaler unscaled wrongly with this many steps in flight."""
    arm = run.arm(f"torch depth {depth} G={interval}")
    return float(sum(arm.column("wrong")) / sum(arm.column("checked")))


def _told(run: Result) -> list[Record]:
    """Return the excerpts that tell enough for the machine."""
    return [row for row in run.records if row["replayed"] is not None]


def _hiding(run: Result) -> list[Record]:
    """Return the excerpts that print no skip although the scale falls."""
    return [row for row in run.records if row["skips_proved"] and not sum(row["skips_printed"])]


def _installed(run: Result) -> list[Record]:
    """Return the others' scalers that the atlas has run."""
    return [row for row in run.records if row["arm"] != "laws" and not row["requirement"].startswith("ampsim")]


def _own(run: Result) -> list[Record]:
    """Return our scalers that the atlas has run."""
    return [row for row in run.records if row["arm"] != "laws" and row["requirement"].startswith("ampsim")]


def _classes(run: Result, *laws: str) -> set[str]:
    """Return the classes that break one of these laws, or a law away from the ends; ours are not among them."""
    found = (
        (row["class"], broken_laws(row) & {*laws} if laws else broken_laws(row) - ends(run)) for row in _installed(run)
    )
    return {str(name) for name, broken in found if broken}


def _promised(run: Result, whose: str) -> int:
    """Return how many laws of the atlas are promised by torch, by the package, or are ours."""
    return sum(each.partition(":")[0] == whose for each in run.arm("laws").first["promises"].values())


def _cells(run: Result, law: str = "", outcomes: tuple[str, ...] = BROKEN) -> int:
    """Return how many scalers come out so by a law, or by all of them together."""
    found = (row["laws"].items() for row in _installed(run))
    return sum(each["outcome"] in outcomes for laws in found for name, each in laws if name == law or not law)


def _loops(run: Result) -> list[Record]:
    """Return the loops of frameworks."""
    return [row for row in run.records if "laws" in row]


def _broken_cells(run: Result) -> list[Record]:
    """Return what was found where a loop of a framework breaks a law."""
    return [cell for row in _loops(run) for cell in row["laws"].values() if cell["outcome"] == "broken"]


def _faults(run: Result) -> list[Record]:
    """Return the runs of the explainer in which a fault was planted."""
    return [row for row in run.records if row["arm"] != "healthy"]


def _apart(run: Result) -> list[float]:
    """Return by how many bits the scales of two ranks are apart at the end of the runs in which they part."""
    return [abs(log2(a["scale_changes"][-1][1] / b["scale_changes"][-1][1])) for a, b in parted_runs(run)]


def _in_words(names: set[str]) -> str:
    """Return the titles of scalers in a row."""
    *first, last = (title for name, title in TITLES.items() if name in names)
    if len(first) + 1 != len(names):
        raise KeyError(f"{sorted(names)}: expected a title of each in TITLES")
    return f"{', '.join(first)} and {last}"


def _atlas(law: str, outcomes: tuple[str, ...] = BROKEN, printed: str = "words") -> Number:
    return Number("atlas", lambda run: _cells(run, law, outcomes), printed)


NUMBERS: dict[str, Number | Formula] = {
    "dialects": Formula(lambda: len(survey()), "d"),
    "field.behaviours": Formula(lambda: len(set(survey().values())), "d"),
    "field.late": Formula(lambda: sum(row.grows_at in (4, 5) for row in survey().values()), "words"),
    "field.factors": Formula(
        lambda: sum(
            (rule.growth_factor, rule.backoff_factor) != (2.0, 0.5) for rule in map(dialects.get, dialects.names())
        ),
        "words",
    ),
    "field.infinite": Formula(lambda: sum(row.top == "infinite" for row in survey().values()), "words"),
    "field.zero": Formula(lambda: sum(row.bottom == "zero" for row in survey().values()), "d"),
    "field.raises": Formula(lambda: sum(row.bottom == "raises" for row in survey().values()), "words"),
    "field.delayed": Formula(lambda: sum(row.delay == 1 for row in survey().values()), "words"),
    "torch.zero": Formula(lambda: overflows_until(dialects.get("torch.amp.GradScaler"), 0.0), "d"),
    "atlas.scalers": Number("atlas", lambda run: len(_installed(run)), "d"),
    "atlas.packages": Number("atlas", lambda run: len({row["requirement"] for row in _installed(run)}), "d"),
    "atlas.patched": Number("atlas", lambda run: sum(bool(row["patched"]) for row in _installed(run)), "d"),
    "atlas.laws": Number("atlas", lambda run: len(run.arm("laws").first["sentences"]), "d"),
    "atlas.histories": Number("atlas", lambda run: run.config["histories"], ",d"),
    "atlas.equal": Number("atlas", lambda run: sum(not row["drift"]["differing"] for row in _installed(run)), "d"),
    "atlas.classes": Number("atlas", lambda run: len({row["class"] for row in _installed(run)}), "d"),
    "atlas.laws.torch": Number("atlas", lambda run: _promised(run, "torch"), "d"),
    "atlas.laws.package": Number("atlas", lambda run: _promised(run, "the package"), "d"),
    "atlas.laws.ours": Number("atlas", lambda run: _promised(run, "ours"), "d"),
    "atlas.classes.away": Number("atlas", lambda run: len(_classes(run)), "d"),
    "atlas.ours": Number("atlas", lambda run: sum(len(broken_laws(row)) for row in _own(run)), "words"),
    "atlas.environments": Number("atlas", lambda run: len({row["environment"] for row in _installed(run)}), "words"),
    "atlas.gradient.classes": Number("atlas", lambda run: len(_classes(run, GRADIENT)), "words"),
    "atlas.gradient.names": Number("atlas", lambda run: _in_words(_classes(run, GRADIENT)), "text"),
    "atlas.asked": _atlas("", ASKED, ",d"),
    "atlas.broken": _atlas("", printed="d"),
    "atlas.declared": _atlas("", ("expected failure",), "d"),
    "atlas.ends": Number("atlas", lambda run: sum(_cells(run, law) for law in ends(run)), "d"),
    "atlas.below-one": _atlas("never_steps_on_nonfinite_below_scale_one", printed="d"),
    "atlas.below-one.asked": _atlas("never_steps_on_nonfinite_below_scale_one", ASKED, "d"),
    "atlas.resumed": _atlas("a_state_dict_continues_the_run"),
    "traces.count": Number("traces", lambda run: len(run.records), ",d"),
    "traces.repeated": Number("traces", lambda run: sum(row["repeated"] for row in run.records), ",d"),
    "traces.updates": Number("traces", lambda run: sum(row["updates"] for row in run.records), ",d"),
    "adversary.first": Number("adversary", lambda run: run.arm(SWEEP).the("first_corruption"), "d"),
    "adversary.torch": Number("adversary", lambda run: total(run, "torch: ", "corruptions"), ",d"),
    "adversary.total": Number("adversary", lambda run: total(run, "torch: ", "steps"), ",d"),
    "threads.torch.2.1": Number("threads", lambda run: _wrong(run, 1, 2), "%0"),
    "threads.torch.2000.1": Number("threads", lambda run: _wrong(run, 1, 2000), "%2"),
    "threads.torch.2000.4": Number("threads", lambda run: _wrong(run, 4, 2000), "%2"),
    "threads.ours.checked": Number("threads", lambda run: total(run, "ampsim ", "checked"), ",d"),
    "race.wrong": Number("threads_loss", lambda run: run.arm("torch G=5").mean("wrong") / run.config["steps"], "%0"),
    "race.seeds": Number("threads_loss", lambda run: len(run.seeds), "words"),
    "race.higher": Number(
        "threads_loss", lambda run: max(int((more > 0).sum()) for more in race_costs(run).values()), "<=words"
    ),
    "race.mean": Number("threads_loss", lambda run: race_costs(run)[5].mean(), ".4f"),
    "race.half": Number("threads_loss", lambda run: half_width(race_costs(run)[5]), "<=.4f"),
    "race.loss": Number("threads_loss", lambda run: run.arm("ampsim G=5").mean("train_loss"), ".3f"),
    "race.50.wrong": Number(
        "threads_loss", lambda run: run.arm("torch G=50").mean("wrong") / run.config["steps"], "%1"
    ),
    "race.50.mean": Number("threads_loss", lambda run: race_costs(run)[50].mean(), ".4f"),
    "race.50.half": Number("threads_loss", lambda run: half_width(race_costs(run)[50]), "<=.4f"),
    "race.50.loss": Number("threads_loss", lambda run: run.arm("ampsim G=50").mean("train_loss"), ".3f"),
    "public.excerpts": Number("public_runs", lambda run: len(run.records), "d"),
    "public.told": Number("public_runs", lambda run: len(_told(run)), "words"),
    "public.equal": Number(
        "public_runs", lambda run: sum(row["replayed"] == row["log2_scale"] for row in _told(run)), "words"
    ),
    "public.hiding": Number("public_runs", lambda run: len(_hiding(run)), "words"),
    "public.proved": Number("public_runs", lambda run: sum(map(least_overflows, _hiding(run))), ">=words"),
    "public.alike": Number(
        "public_runs", lambda run: sum(row["log2_scale"][:6] == START for row in _told(run)), "words"
    ),
    "public.elsewhere": Number(
        "public_runs", lambda run: sum(row["overflow_steps"] is not None for row in _hiding(run)), "words"
    ),
    "kit.checks": Number("conformance", lambda run: len(run.arm("torch").the("checks")), "d"),
    "kit.torch": Number("conformance", lambda run: len(run.arm("torch").the("failed")), "d"),
    "kit.torch.numbers": Number(
        "conformance",
        lambda run: sum(run.arm("torch").the("checks")[name]["level"] == 5 for name in run.arm("torch").the("failed")),
        "words",
    ),
    "kit.torch.range": Number(
        "conformance",
        lambda run: sum(name in ENDS for name in run.arm("torch").the("failed")),
        "words",
    ),
    "ranks.cells": Number("ranks_cells", lambda run: len(rank_cells(run, "torch")), "d"),
    "ranks.wrong": Number("ranks_cells", lambda run: len(rank_wrong(run, "torch")), "d"),
    "ranks.parted": Number("ranks_cells", lambda run: len(rank_wrong(run, "torch", "parted")), "words"),
    "ranks.infinite": Number("ranks_cells", lambda run: len(rank_wrong(run, "torch", "infinite")), "words"),
    "ranks.raised": Number(
        "ranks_cells", lambda run: sum(cell["outcome"][:6] == "raised" for cell in rank_wrong(run, "torch")), "d"
    ),
    "ranks.raised.infinite": Number(
        "ranks_cells", lambda run: len(rank_wrong(run, "torch", "raised infinite")), "words"
    ),
    "logs.scalers": Number("whole_logs", lambda run: len(run.records), "words"),
    "logs.printed": Number("whole_logs", lambda run: sum(row["printed"] for row in run.records), ",d"),
    "logs.steps": Number("whole_logs", lambda run: sum(row["steps"] for row in run.records), ",d"),
    "logs.sft.steps": Number("whole_logs", lambda run: run.arm(SFT).the("steps"), ",d"),
    "logs.sft.skips": Number("whole_logs", lambda run: run.arm(SFT).the("skipped"), "d"),
    "logs.sft.bound": Number("whole_logs", lambda run: floor(run.arm(SFT).the("bound")), "d"),
    "rt.apart.min": Number("ranks_training", lambda run: min(_apart(run)), ">=d"),
    "rt.apart.max": Number("ranks_training", lambda run: max(_apart(run)), "<=d"),
    "census.loops": Number("census", lambda run: census(run, "wrong")[1], "d"),
    "census.wrong": Number("census", lambda run: census(run, "wrong")[0], "d"),
    "census.repositories": Number(
        "census", lambda run: len({name for row in run.records for name in row["repositories"]}), "d"
    ),
    "loops.bugs": Number("loops", lambda run: len(run.arm("bugs").first["bugs"]), "d"),
    "loops.caught": Number(
        "loops", lambda run: sum(bug["caught"] for bug in run.arm("bugs").first["bugs"].values()), "d"
    ),
    "loops.threads": Number(
        "loops", lambda run: len({bug["thread"] for bug in run.arm("bugs").first["bugs"].values()}), "d"
    ),
    "loops.loops": Number("loops", lambda run: len(_loops(run)), "d"),
    "loops.frameworks": Number(
        "loops", lambda run: len({row["arm"].partition(",")[0] for row in _loops(run)}), "words"
    ),
    "loops.broken": Number(
        "loops",
        lambda run: sum(any(cell["outcome"] == "broken" for cell in row["laws"].values()) for row in _loops(run)),
        "words",
    ),
    "loops.cells": Number("loops", lambda run: len(_broken_cells(run)), "words"),
    "loops.unreported": Number(
        "loops", lambda run: sum("https://" not in cell["known"] for cell in _broken_cells(run)), "words"
    ),
    "explain.healthy": Number("explain_faults", lambda run: len(run.arm("healthy")), "words"),
    "explain.planted": Number("explain_faults", lambda run: len(_faults(run)), "d"),
    "explain.named": Number("explain_faults", lambda run: sum(row["named"] == row["arm"] for row in _faults(run)), "d"),
    "explain.interval": Number(
        "explain_faults",
        lambda run: sum(row["named"] == row["arm"] for row in run.arm("interval too long")),
        "words",
    ),
    "explain.each": Number("explain_faults", lambda run: len(run.arm("interval too long")), "words"),
    "card.claims": Formula(lambda: len(card.CLAIMS), "words"),
    "card.hash": Formula(lambda: card.SHA256[:12], "text"),
    "claims.device": Number("device_claims", lambda run: len(run.records), "d"),
}
