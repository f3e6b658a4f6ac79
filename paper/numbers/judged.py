"""What the machine and the laws say of loops, threads, ranks and logs."""

import json
from collections.abc import Callable, Iterable, Sequence
from math import floor, isnan, log2, sqrt

from ampsim.records import Record
from figures.quantities import (
    census,
    half_width,
    least_overflows,
    parted_runs,
    race_costs,
    rank_cells,
    rank_wrong,
    total,
)
from figures.results import Array, Result
from paper.sources import ROOT
from paper.values import Formula, Number

START = [23.0, 15.0, 14.0, 14.0, 14.0, 14.0]  # of five benchmark logs, by their tens of steps
SFT = "SFT, OPT-1.3B"
SET_ASIDE = {"AMP105", "AMP109", "AMP127"}  # the census does not count these: off by default, or broken by choice
ICEFALL = "k2-fsa/icefall"
OUR_SCALER = ("flax, nnx", "equinox")  # loops of packages that have no scaler


def _wrong(run: Result, depth: int, interval: int) -> float:
    """Return the share of passes that torch's scaler unscaled wrongly with this many steps in flight."""
    arm = run.arm(f"torch depth {depth} G={interval}")
    return float(sum(arm.column("wrong")) / sum(arm.column("checked")))


def _passes(depth: int, column: str) -> Callable[[Result], int]:
    """Return a function that counts the passes of torch's scaler at its own interval."""
    return lambda run: sum(run.arm(f"torch depth {depth} G=2000").column(column))


def _told(run: Result) -> list[Record]:
    """Return the excerpts that tell enough for the machine."""
    return [row for row in run.records if row["replayed"] is not None]


def _hiding(run: Result) -> list[Record]:
    """Return the excerpts that print no skip although the scale falls."""
    return [row for row in run.records if row["skips_proved"] and not sum(row["skips_printed"])]


def _test_costs(run: Result, interval: int) -> Array:
    """Return how much more test loss torch's shared scaler ends with than ours, per seed, nats."""
    ours, torchs = (run.arm(f"{whose} G={interval}").numbers("test_loss") for whose in ("ampsim", "torch"))
    return torchs - ours


def _margins(run: Result) -> list[float]:
    """Return by how much the intervals of the four mean differences of losses leave out zero, those that do."""
    samples = [sample for g in run.config["growth_intervals"] for sample in (race_costs(run)[g], _test_costs(run, g))]
    margins = [abs(float(sample.mean())) - half_width(sample) for sample in samples]
    return [margin for margin in margins if margin > 0]


def _share_of_passes(run: Result, arm: str, column: str) -> float:
    """Return which share of all passes of an arm a column counts."""
    return float(sum(run.arm(arm).column(column)) / (len(run.seeds) * run.config["steps"]))


def _other_rules(run: Result) -> list[bool]:
    """Return whether its log refutes it, for each rule that differs from a scaler's own."""
    return [
        found["refuted"] is not None for row in run.records for name, found in row["rules"].items() if name != "as set"
    ]


def _unrefuted(run: Result, below: bool) -> int:
    """Return how many logs do not refute the interval that is a hundredth shorter, or longer."""
    shares = {row["arm"]: row["settings"]["growth_interval"] * (0.99 if below else 1.01) for row in run.records}
    return sum(row["rules"][f"G={shares[row['arm']]:g}"]["refuted"] is None for row in run.records)


def _read(code: str) -> list[bool]:
    """Return whether a rule's findings were right, in files that it was not written with, as readers judged them."""
    _, *found = map(json.loads, (ROOT / "docs" / "lint" / "measured.jsonl").read_text("utf-8").splitlines())
    return [each["true"] for each in found if each["code"] == code and each["sample"].startswith("unseen")]


def _corpus() -> set[str]:
    """Return the repositories of the corpus on which the rules were made, as far as a finding names them."""
    _, *found = map(json.loads, (ROOT / "docs" / "lint" / "measured.jsonl").read_text("utf-8").splitlines())
    return {each["repository"] for each in found if not each["sample"].startswith("unseen")}


def by_repository() -> dict[str, tuple[int, int]]:
    """Return per repository of the census how many of its loops break a law, and how many it has; copies count once."""
    files = [*map(json.loads, (ROOT / "experiments" / "inputs" / "census.jsonl").read_text("utf-8").splitlines())]
    loops = {loop["digest"]: (file["repository"], loop) for file in files[::-1] for loop in file["loops"]}
    found: dict[str, list[bool]] = {}
    for repository, loop in loops.values():
        found.setdefault(repository, []).append(bool(loop["codes"].keys() - SET_ASIDE))
    return {repository: (sum(wrong), len(wrong)) for repository, wrong in found.items()}


def clustered(groups: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return the 95 % interval of a share that is counted in groups whose members are alike, by linearization."""
    share = sum(wrong for wrong, _ in groups) / sum(size for _, size in groups)
    square = sum((wrong - share * size) ** 2 for wrong, size in groups) * len(groups) / (len(groups) - 1)
    half = 1.959964 * sqrt(square) / sum(size for _, size in groups)
    return share - half, share + half


def _of_kind(run: Result, kind: str, wrong: bool) -> int:
    """Return how many loops of a kind of repository the census has, or finds wrong."""
    row = run.arm(kind).records[0]
    return int(row["wrong"]["loops"] if wrong else row["loops"])


def _loops(run: Result) -> list[Record]:
    """Return the loops of packages that train with a scaler, torch's or their own."""
    return [row for row in run.records if "laws" in row and row["arm"] not in OUR_SCALER]


def _package(row: Record) -> str:
    """Return the name of the package that a loop is of."""
    return str(row["arm"].partition(",")[0])


def _broken(run: Result) -> list[Record]:
    """Return the loops of frameworks that break a law."""
    return [row for row in _loops(run) if any(cell["outcome"] == "broken" for cell in row["laws"].values())]


def _broken_cells(run: Result) -> list[Record]:
    """Return what was found where a loop of a framework breaks a law."""
    return [cell for row in _loops(run) for cell in row["laws"].values() if cell["outcome"] == "broken"]


def _faults(run: Result) -> list[Record]:
    """Return the runs of the explainer in which a fault was planted."""
    return [row for row in run.records if row["arm"] != "healthy"]


def _missed(rows: Iterable[Record]) -> int:
    """Return how many runs the explainer calls healthy."""
    return sum(row["verdict"] == "healthy" for row in rows)


def _apart(run: Result) -> list[float]:
    """Return by how many bits the scales of two ranks are apart at the end of the runs in which they part."""
    return [abs(log2(a["scale_changes"][-1][1] / b["scale_changes"][-1][1])) for a, b in parted_runs(run)]


def _nan(run: Result) -> list[int]:
    """Return the first step at which the loss is NaN in the runs in which the scales of the ranks part."""
    return [next(step for step, loss in enumerate(ranks[0]["loss"]) if isnan(loss)) for ranks in parted_runs(run)]


def _of_cut(cut: str) -> Number:
    return Number("ranks_cells", lambda run: sum(cell["cut"] == cut for cell in rank_cells(run, "torch")), "d")


def _wrong_of_cut(cut: str) -> Number:
    return Number("ranks_cells", lambda run: sum(cell["cut"] == cut for cell in rank_wrong(run, "torch")), "d")


NUMBERS: dict[str, Number | Formula] = {
    "threads.torch.2.1": Number("threads", lambda run: _wrong(run, 1, 2), "%0"),
    **{
        f"threads.torch.2000.{depth}.{column}": Number("threads", _passes(depth, column), ",d")
        for depth in (1, 4)
        for column in ("wrong", "checked")
    },
    "threads.ours.checked": Number("threads", lambda run: total(run, "ampsim ", "checked"), ",d"),
    "race.apart": Number("threads_loss", lambda run: len(_margins(run)), "words"),
    "race.margin": Number("threads_loss", lambda run: max(_margins(run)), ".4f"),
    "race.seeds": Number("threads_loss", lambda run: len(run.seeds), "words"),
    "race.train": Number("threads_loss", lambda run: int((race_costs(run)[5] > 0).sum()), "words"),
    "race.50.train": Number("threads_loss", lambda run: int((race_costs(run)[50] > 0).sum()), "words"),
    "race.test.mean": Number("threads_loss", lambda run: float(_test_costs(run, 5).mean()), ".4f"),
    "race.test.half": Number("threads_loss", lambda run: half_width(_test_costs(run, 5)), "<=.4f"),
    "race.50.test.mean": Number("threads_loss", lambda run: float(_test_costs(run, 50).mean()), ".4f"),
    "race.50.test.half": Number("threads_loss", lambda run: half_width(_test_costs(run, 50)), "<=.4f"),
    "race.errors": Number("threads_loss", lambda run: _share_of_passes(run, "torch G=5", "errors"), "%1"),
    "race.50.errors": Number("threads_loss", lambda run: _share_of_passes(run, "torch G=50", "errors"), "%1"),
    "race.mean": Number("threads_loss", lambda run: race_costs(run)[5].mean(), ".4f"),
    "race.half": Number("threads_loss", lambda run: half_width(race_costs(run)[5]), "<=.4f"),
    "race.loss": Number("threads_loss", lambda run: run.arm("ampsim G=5").mean("train_loss"), ".3f"),
    "race.50.wrong": Number("threads_loss", lambda run: _share_of_passes(run, "torch G=50", "wrong"), "%1"),
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
    "ranks.cells": Number("ranks_cells", lambda run: len(rank_cells(run, "torch")), "d"),
    "ranks.wrong": Number("ranks_cells", lambda run: len(rank_wrong(run, "torch")), "d"),
    **{f"ranks.{cut}": _of_cut(cut) for cut in ("FSDP1", "plain", "DDP", "FSDP2")},
    **{f"ranks.{cut}.wrong": _wrong_of_cut(cut) for cut in ("FSDP1", "plain", "DDP", "FSDP2")},
    "ranks.parted": Number("ranks_cells", lambda run: len(rank_wrong(run, "torch", "parted")), "words"),
    "ranks.infinite": Number("ranks_cells", lambda run: len(rank_wrong(run, "torch", "infinite")), "words"),
    "ranks.raised": Number(
        "ranks_cells", lambda run: sum(cell["outcome"][:6] == "raised" for cell in rank_wrong(run, "torch")), "d"
    ),
    "ranks.raised.infinite": Number(
        "ranks_cells", lambda run: len(rank_wrong(run, "torch", "raised infinite")), "words"
    ),
    "logs.scalers": Number("whole_logs", lambda run: len(run.records), "words"),
    "logs.logs": Number("whole_logs", lambda run: len({row["source"] for row in run.records}), "words"),
    "logs.steps": Number("whole_logs", lambda run: sum(row["steps"] for row in run.records), ",d"),
    "logs.rules": Number("whole_logs", lambda run: len(_other_rules(run)), "d"),
    "logs.rules.refuted": Number("whole_logs", lambda run: sum(_other_rules(run)), "d"),
    "logs.unprinted": Number(
        "whole_logs", lambda run: sum(step is None for _, step, *_ in run.arm(SFT).the("events")), "d"
    ),
    "logs.shorter": Number("whole_logs", lambda run: _unrefuted(run, below=True), "words"),
    "logs.longer": Number("whole_logs", lambda run: _unrefuted(run, below=False), "words"),
    "logs.sft.steps": Number("whole_logs", lambda run: run.arm(SFT).the("steps"), ",d"),
    "logs.sft.skips": Number("whole_logs", lambda run: run.arm(SFT).the("skipped"), "d"),
    "logs.sft.bound": Number("whole_logs", lambda run: floor(run.arm(SFT).the("bound")), "d"),
    "rt.interval": Number("ranks_training", lambda run: run.config["growth_interval"], "words"),
    "rt.seeds": Number("ranks_training", lambda run: len(run.seeds), "words"),
    "rt.start": Number("ranks_training", lambda run: 2.0 ** run.config["init_log2"], "2^"),
    "rt.steps": Number("ranks_training", lambda run: run.config["steps"], "d"),
    "rt.apart.min": Number("ranks_training", lambda run: min(_apart(run)), ">=d"),
    "rt.apart.max": Number("ranks_training", lambda run: max(_apart(run)), "<=d"),
    "rt.nan.min": Number("ranks_training", lambda run: min(_nan(run)), ">=d"),
    "rt.nan.max": Number("ranks_training", lambda run: max(_nan(run)), "<=d"),
    "lint.schedules": Formula(lambda: len(_read("AMP101")), "d"),
    "lint.schedules.right": Formula(lambda: sum(_read("AMP101")), "d"),
    "lint.unsaved": Formula(lambda: len(_read("AMP112")), "d"),
    "lint.unsaved.right": Formula(lambda: sum(_read("AMP112")), "d"),
    "census.loops": Number("census", lambda run: census(run, "wrong")[1], "d"),
    "census.wrong": Number("census", lambda run: census(run, "wrong")[0], "d"),
    "census.repositories.wrong": Number(
        "census", lambda run: len({name for row in run.records for name in row["wrong"]["repositories"]}), "d"
    ),
    "census.share": Number("census", lambda run: census(run, "wrong")[0] / census(run, "wrong")[1], "%0"),
    "census.averages": Number("census", lambda run: census(run, "of", "average")[1], "d"),
    "census.icefall": Formula(lambda: by_repository()[ICEFALL][1], "d"),
    "census.rest": Formula(lambda: sum(size for name, (_, size) in by_repository().items() if name != ICEFALL), "d"),
    "census.corpus": Formula(lambda: len(by_repository().keys() & _corpus()), ">=d"),
    "census.low": Formula(lambda: clustered([*by_repository().values()])[0], ">=%0"),
    "census.high": Formula(lambda: clustered([*by_repository().values()])[1], "<=%0"),
    "census.script": Number("census", lambda run: _of_kind(run, "script", wrong=True), "d"),
    "census.script.loops": Number("census", lambda run: _of_kind(run, "script", wrong=False), "d"),
    "census.package": Number("census", lambda run: _of_kind(run, "package", wrong=True), "d"),
    "census.package.loops": Number("census", lambda run: _of_kind(run, "package", wrong=False), "d"),
    "census.example": Number("census", lambda run: _of_kind(run, "example", wrong=True), "d"),
    "census.example.loops": Number("census", lambda run: _of_kind(run, "example", wrong=False), "d"),
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
    "loops.loops": Number("loops", lambda run: len(_loops(run)), "words"),
    "loops.frameworks": Number("loops", lambda run: len(set(map(_package, _loops(run)))), "words"),
    "loops.broken": Number("loops", lambda run: len(_broken(run)), "words"),
    "loops.broken.packages": Number("loops", lambda run: len(set(map(_package, _broken(run)))), "words"),
    "loops.cells": Number("loops", lambda run: len(_broken_cells(run)), "words"),
    "loops.unreported": Number(
        "loops", lambda run: sum("https://" not in cell["known"] for cell in _broken_cells(run)), "words"
    ),
    "explain.healthy": Number("explain_faults", lambda run: len(run.arm("healthy")), "words"),
    "explain.false": Number(  # the end of the exact 95 % interval where none was found
        "explain_faults", lambda run: 1 - 0.025 ** (1 / len(run.arm("healthy"))), "<=%0"
    ),
    "explain.planted": Number("explain_faults", lambda run: len(_faults(run)), "d"),
    "explain.named": Number("explain_faults", lambda run: sum(row["named"] == row["arm"] for row in _faults(run)), "d"),
    "explain.unsure": Number(
        "explain_faults", lambda run: sum(row["verdict"] == "cannot tell" for row in run.arm("healthy")), "words"
    ),
    "explain.missed": Number("explain_faults", lambda run: _missed(_faults(run)), "words"),
    "explain.missed.share": Number("explain_faults", lambda run: _missed(_faults(run)) / len(_faults(run)), "%0"),
    "explain.missed.interval": Number("explain_faults", lambda run: _missed(run.arm("interval too long")), "words"),
    "explain.missed.clip": Number("explain_faults", lambda run: _missed(run.arm("scaled clip")), "words"),
    "explain.other": Number(
        "explain_faults", lambda run: sum(row["named"] not in ("healthy", row["arm"]) for row in _faults(run)), "words"
    ),
    "explain.each": Number("explain_faults", lambda run: len(run.arm("interval too long")), "words"),
}
