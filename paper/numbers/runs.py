"""Public logs under the state machine, and under `ampsim explain` at first sight."""

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache, partial
from statistics import median

from ampsim.core.json_lines import Record, read_objects
from ampsim.core.machine import Rule
from ampsim.core.theory import pathwise
from experiments.corpus import runs as corpus
from figures.derived_numbers import cuda_runs, followed
from figures.results import Result
from paper.sources import ROOT
from paper.values import Formula, Number

cuda = partial(Number, "cuda_runs")
TORCH = ("arcface", "swin")  # programs with torch's GradScaler
UPDATED_TWICE = "mlcommons/training_results_v0.7"
SIGHT = ROOT / "experiments" / "inputs" / "first_sight.jsonl"
PROBLEM, HEALTHY, UNDECIDED = "a problem", "no problem", "undecided"
TRUTHS, VERDICTS = (PROBLEM, HEALTHY), (PROBLEM, HEALTHY, UNDECIDED)
WORDS = {
    "problem": PROBLEM,
    "no problem found": HEALTHY,
}  # any other verdict decides nothing


def whole(rows: Iterable[Record]) -> int:
    """Return how many runs the state machine reproduces."""
    return sum(not row["breaks"] for row in rows)


def total(rows: Iterable[Record], name: str) -> int:
    """Return the sum of a count over runs."""
    return sum(row[name] for row in rows)


def both(run: Result) -> list[Record]:
    """Return the logs that agree with the rule and contradict three times its interval."""
    return [row for row in followed(run) if row["control"] > 0 and not row["breaks"]]


def source_of(row: Record) -> str:
    """Return where the growth interval of a followed log is from: "log", "file" or "default"."""
    place = f"{row['repository']}/{row['path']}"
    files = [known for at, known in corpus.CONFIGURED if re.search(at, place)]
    if any("interval" in known for known in files):
        return "file"
    return "log" if corpus_run(row)["interval"] else "default"


def corpus_run(row: Record) -> corpus.Run:
    """Return the numbers of a log."""
    return _by_place()[row["repository"], row["path"]]


@cache
def _by_place() -> dict[tuple[str, str], corpus.Run]:
    return {(run["repository"], run["path"]): run for run in corpus.load()}


def of_source(run: Result, source: str) -> int:
    """Return how many followed logs have their growth interval from a source."""
    return sum(source_of(row) == source for row in followed(run))


def repositories(rows: Iterable[Record]) -> set[str]:
    """Return the repositories of some logs."""
    return {row["repository"] for row in rows}


def clean_repositories(run: Result) -> set[str]:
    """Return the repositories whose followed logs are all consistent."""
    broken = [row for row in followed(run) if row["breaks"]]
    return repositories(followed(run)) - repositories(broken)


def still(run: Result) -> int:
    """Return how many followed logs have no growth."""
    return sum(not row["growths"] for row in followed(run))


def torch_growths(run: Result) -> float:
    """Return the median of the growths per log of torch's scaler."""
    rows = [row for row in followed(run) if row["program"] in TORCH]
    return float(median(row["growths"] for row in rows))


def bounded(run: Result) -> list[Record]:
    """Return the followed runs whose logs print each overflow and its step."""
    return [row for row in followed(run) if "most" in row]


def updated_twice(run: Result) -> list[Record]:
    """Return the logs of the program that updates its scaler twice in a finite step."""
    return [row for row in followed(run) if row["repository"] == UPDATED_TWICE]


def longer_bound(row: Record, times: int) -> float:
    """Return how many skips a log could have with a growth interval this many times as long."""
    steps, interval = row["steps"], row["interval"]
    allowed = row["most"] - free_skips(row, interval)
    # The net descent is what the skip bound adds for one bit, as often as it fits.
    rule = Rule(growth_interval=interval)
    flat, bit = (pathwise.skips(rule, steps + interval, bits) for bits in (0, 1))
    descent = (allowed - flat) / (bit - flat)
    longer = Rule(growth_interval=times * interval)
    bound = pathwise.skips(longer, steps + longer.growth_interval, descent)
    return bound + free_skips(row, longer.growth_interval)


def free_skips(row: Record, interval: int) -> int:
    """Return how many overflows cause no backoff by hysteresis: some at the start and per growth."""
    return int((row["hysteresis"] - 1) * (1 + row["steps"] // interval))


def within(run: Result) -> list[Record]:
    """Return the logs that skip no more than the bound allows."""
    return [row for row in bounded(run) if row["skips"] <= row["most"]]


def most_gpus(run: Result) -> int:
    """Return the largest number of GPUs of a run."""
    return max(int(row["gpus"] or 0) for row in cuda_runs(run))


@cache
def judged() -> list[Record]:
    """Return the logs whose truth a reader was certain of before `explain` saw them."""
    rows = (row for _, row in read_objects(SIGHT) if row["of"] == "explain")
    return [row for row in rows if row["certain"] and row["truth"] in WORDS]


def samples() -> list[int]:
    """Return the samples of logs."""
    return sorted({row["sample"] for row in judged()})


def verdicts(sample: int) -> Counter[tuple[str, str]]:
    """Return how often each truth got each verdict, at first sight of a sample."""
    rows = (row for row in judged() if row["sample"] == sample)
    return Counter(
        (WORDS[row["truth"]], WORDS.get(row["first"], UNDECIDED)) for row in rows
    )


def over_samples(truth: str, verdict: str) -> int:
    """Return how often a truth got a verdict, over all samples."""
    return sum(verdicts(sample)[truth, verdict] for sample in samples())


def says_nan(truth: str, sample: int | None = None) -> int:
    """Return how many logs of a truth have the word nan or inf, in a sample or in all."""
    rows = (row for row in judged() if sample in (None, row["sample"]))
    return sum(row["says_nan"] for row in rows if WORDS[row["truth"]] == truth)


def undecided(sample: int) -> float:
    """Return the share of undecided logs of a sample."""
    counts = verdicts(sample)
    return sum(counts[truth, UNDECIDED] for truth in TRUTHS) / counts.total()


NUMBERS: dict[str, Number | Formula] = {
    "cuda.runs": cuda(lambda run: len(cuda_runs(run)), "d"),
    "cuda.repositories": cuda(lambda run: len(repositories(cuda_runs(run))), "d"),
    "cuda.gpus": cuda(most_gpus, ",d"),
    "cuda.followed": cuda(lambda run: len(followed(run)), "d"),
    "cuda.whole": cuda(lambda run: whole(followed(run)), "d"),
    "cuda.differing": cuda(
        lambda run: len(followed(run)) - whole(followed(run)), "words"
    ),
    "cuda.moves": cuda(lambda run: total(followed(run), "moves"), ",d"),
    "cuda.breaks": cuda(
        lambda run: sum(len(row["breaks"]) for row in followed(run)), "d"
    ),
    "cuda.growths": cuda(lambda run: total(followed(run), "growths"), ",d"),
    "cuda.control": cuda(lambda run: total(followed(run), "control"), ",d"),
    "cuda.unfollowed": cuda(lambda run: len(cuda_runs(run)) - len(followed(run)), "d"),
    "cuda.followed.repositories": cuda(
        lambda run: len(repositories(followed(run))), "d"
    ),
    "cuda.clean.repositories": cuda(lambda run: len(clean_repositories(run)), "d"),
    "cuda.still": cuda(still, "d"),
    "cuda.growing": cuda(lambda run: len(followed(run)) - still(run), "d"),
    "cuda.torch.growths": cuda(torch_growths, ".0f"),
    "cuda.interval.log": cuda(partial(of_source, source="log"), "d"),
    "cuda.interval.file": cuda(partial(of_source, source="file"), "d"),
    "cuda.interval.default": cuda(partial(of_source, source="default"), "d"),
    "cuda.both": cuda(lambda run: len(both(run)), "d"),
    "cuda.next": cuda(
        lambda run: sum(
            row["rivals"]["one more"] > 0 and not row["breaks"] for row in followed(run)
        ),
        "d",
    ),
    "cuda.both.repositories": cuda(lambda run: len(repositories(both(run))), "d"),
    "cuda.twice.logs": cuda(lambda run: len(updated_twice(run)), "d"),
    "cuda.twice.refuted": cuda(
        lambda run: sum(row["rivals"]["twice"] > 0 for row in updated_twice(run)), "d"
    ),
    "cuda.bound.logs": cuda(lambda run: len(bounded(run)), "d"),
    "cuda.bound.repositories": cuda(lambda run: len(repositories(bounded(run))), "d"),
    "cuda.bound.within": cuda(lambda run: len(within(run)), "d"),
    "cuda.bound.power": cuda(
        lambda run: sum(row["skips"] > longer_bound(row, 3) for row in within(run)), "d"
    ),
    "cuda.held.runs": cuda(lambda run: len(cuda_runs(run, held_out=True)), "d"),
    "cuda.held.found.repositories": cuda(
        lambda run: len(repositories(cuda_runs(run, held_out=True))), "d"
    ),
    "cuda.held.followed": cuda(lambda run: len(followed(run, held_out=True)), "words"),
    "cuda.held.whole": cuda(lambda run: whole(followed(run, held_out=True)), "words"),
    "cuda.held.repositories": cuda(
        lambda run: len(repositories(followed(run, held_out=True))),
        "words",
    ),
    "cuda.held.control": cuda(
        lambda run: total(followed(run, held_out=True), "control"), "d"
    ),
    "cuda.held.moves": cuda(
        lambda run: total(followed(run, held_out=True), "moves"), "d"
    ),
    "sight.false": Formula(lambda: over_samples(HEALTHY, PROBLEM), "words"),
    "sight.cleared": Formula(lambda: over_samples(PROBLEM, HEALTHY), "words"),
    "sight.logs": Formula(lambda: len(judged()), "d"),
    "sight.healthy": Formula(
        lambda: sum(over_samples(HEALTHY, each) for each in VERDICTS), "d"
    ),
    "sight.problems": Formula(
        lambda: sum(over_samples(PROBLEM, each) for each in VERDICTS), "d"
    ),
    "sight.nan.problems": Formula(lambda: says_nan(PROBLEM), "d"),
    "sight.nan.healthy": Formula(lambda: says_nan(HEALTHY), "d"),
    "sight.undecided": Formula(lambda: undecided(samples()[-1]), "%0"),
    "sight.undecided.first": Formula(lambda: undecided(samples()[0]), "%0"),
}
