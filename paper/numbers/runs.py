"""Public logs under the state machine, and under `ampsim explain` at first sight."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, partial

from ampsim.core.json_lines import Record, read_objects
from ampsim.core.machine import Rule
from ampsim.core.theory import pathwise
from experiments.corpus import runs as corpus
from figures.derived_numbers import cuda_runs
from figures.results import Result
from paper.sources import ROOT
from paper.values import Formula, Number

cuda = partial(Number, "cuda_runs")
power = partial(Number, "log_power")
TERSE = ("apex", "gnmt")  # programs that print no growth, or no steps
UPDATED_TWICE = "mlcommons/training_results_v0.7"
MANY = 40  # growth intervals of a run in `log_power`
LONGER = 3  # times the growth interval, of the control
SIGHT = ROOT / "experiments" / "inputs" / "first_sight.jsonl"
PROBLEM, HEALTHY, UNDECIDED = "a problem", "no problem", "undecided"
TRUTHS, VERDICTS = (PROBLEM, HEALTHY), (PROBLEM, HEALTHY, UNDECIDED)
WORDS = {
    "problem": PROBLEM,
    "no problem found": HEALTHY,
}  # any other verdict decides nothing
MLPERF = "MLPerf's fairseq"
# Program, repository and path of a log -> the training program that wrote it, with its forks.
TRAINING_PROGRAMS = (
    (r"^arcface ", "insightface's `arcface_torch`"),
    (r"^swin ", "Swin-Transformer"),
    (r"(?i)deepspeed-chat|deep-speed-chat", "DeepSpeed-Chat"),
    (r"VideoMAE", "VideoMAE"),
    (r"(?i)megatron|bigscience", "Megatron-LM"),
    (r"mlcommons/", MLPERF),
    (r"^fairseq ", "fairseq's trainer"),
)
Kind = Callable[[Record], bool]


def logs(run: Result, kind: Kind, *, held_out: bool = False) -> list[Record]:
    """Return the logs of a kind, of those developed on or of those held out."""
    return [row for row in cuda_runs(run, held_out=held_out) if kind(row)]


def is_any(row: Record) -> bool:
    """Return True."""
    return True


def is_followed(row: Record) -> bool:
    """Return whether the state machine was followed through a log."""
    return "breaks" in row


def is_unfollowed(row: Record) -> bool:
    """Return whether it was not."""
    return "breaks" not in row


def is_without_dialect(row: Record) -> bool:
    """Return whether a log's only reason is that its scaler has no dialect."""
    return row["verdict"] == "no rule" and row["program"] not in TERSE


def prints_little(row: Record) -> bool:
    """Return whether a log prints too little to be followed."""
    return is_unfollowed(row) and not is_without_dialect(row)


def is_consistent(row: Record) -> bool:
    """Return whether the state machine can make each move of a followed log."""
    return row.get("breaks") == []


def is_consistent_by_default(row: Record) -> bool:
    """Return whether a followed log agrees with the scaler's defaults."""
    return row.get("defaults") == 0


def differs(row: Record) -> bool:
    """Return whether a followed log has a break, a move that the state machine cannot make."""
    return bool(row.get("breaks"))


def is_still(row: Record) -> bool:
    """Return whether a followed log shows no growth."""
    return row.get("growths") == 0


def refutes_longer(row: Record) -> bool:
    """Return whether a consistent log refutes an interval three times as long."""
    return is_consistent(row) and row["control"] > 0


def refutes(row: Record, interval: str) -> bool:
    """Return whether a consistent log refutes another interval."""
    return is_consistent(row) and row["rivals"][interval] > 0


def is_consistent_as_stated(row: Record) -> bool:
    """Return whether a log agrees with the settings that it, a file, or the source states."""
    return is_consistent(row) and not refutes_configured(row)


def is_looked_up(row: Record) -> bool:
    """Return whether a log agrees with stated settings, and not with the defaults."""
    return is_consistent_as_stated(row) and not is_consistent_by_default(row)


def is_looked_up_in(row: Record, scaler: str, source: str) -> bool:
    """Return whether such a log is of a scaler, with an interval from a source."""
    return is_looked_up(row) and is_of(row, scaler, source)


def is_of(row: Record, scaler: str, source: str) -> bool:
    """Return whether a followed log is of a scaler, with an interval from a source."""
    return is_of_program(row, scaler) and source_of(row) == source


def is_halved(row: Record) -> bool:
    """Return whether a log agrees only with half of the interval that its program states."""
    return is_consistent(row) and refutes_configured(row)


def is_updated_twice(row: Record) -> bool:
    """Return whether a log's program updates its scaler twice in a finite step."""
    return is_followed(row) and row["repository"] == UPDATED_TWICE


def refutes_configured(row: Record) -> bool:
    """Return whether such a log refutes the interval that its program is configured with."""
    return is_updated_twice(row) and row["rivals"]["twice"] > 0


def refutes_longer_as_printed(row: Record) -> bool:
    """Return whether a log that prints its interval refutes one three times as long."""
    return refutes_longer(row) and source_of(row) == "log"


def is_of_program(row: Record, program: str) -> bool:
    """Return whether a followed log is of a program."""
    return is_followed(row) and row["program"] == program


def is_of_source(row: Record, source: str) -> bool:
    """Return whether a followed log has its growth interval from a source."""
    return is_followed(row) and source_of(row) == source


def source_of(row: Record) -> str:
    """Return where the growth interval of a followed log is from: "log", "file" or "default"."""
    place = f"{row['repository']}/{row['path']}"
    files = [known for at, known in corpus.CONFIGURED if re.search(at, place)]
    if any("interval" in known for known in files):
        return "file"
    return "log" if place in _printing_intervals() else "default"


@cache
def _printing_intervals() -> set[str]:
    runs = [run for run in corpus.load() if run["interval"]]
    return {f"{run['repository']}/{run['path']}" for run in runs}


def training_program(row: Record) -> str:
    """Return the training program that wrote a followed log; forks and copies are one program."""
    place = f"{row['program']} {row['repository']}/{row['path']}"
    return next(name for at, name in TRAINING_PROGRAMS if re.search(at, place))


def has_bound(row: Record) -> bool:
    """Return whether a log prints each overflow and its step."""
    return "most" in row


def has_many_growths(row: Record) -> bool:
    """Return whether a consistent log shows as many growths as the seeded faults' runs last."""
    return is_consistent(row) and row["growths"] >= MANY


def is_without_overflows(row: Record) -> bool:
    """Return whether a followed log does not."""
    return is_followed(row) and not has_bound(row)


def is_consistent_with_overflows(row: Record) -> bool:
    """Return whether a log that prints each overflow is consistent."""
    return is_consistent(row) and has_bound(row)


def is_within(row: Record) -> bool:
    """Return whether a log skips no more than the skip bound allows."""
    return has_bound(row) and row["skips"] <= row["most"]


def exceeds_longer(row: Record) -> bool:
    """Return whether such a log skips more than the bound of a longer interval allows."""
    return is_within(row) and row["skips"] > longer_bound(row)


def longer_bound(row: Record) -> float:
    """Return how many skips a log could have with a growth interval `LONGER` times as long."""
    interval = LONGER * row["interval"]
    rule = Rule(growth_interval=interval, hysteresis=row["hysteresis"])
    # Steps before the first line may have counted towards a growth.
    return pathwise.hysteresis_skips(rule, row["steps"] + interval, row["descent"])


# `ampsim explain` on logs that it had not seen.


@cache
def judged() -> list[Record]:
    """Return the logs whose truth a reader was certain of before `explain` saw them."""
    rows = (row for _, row in read_objects(SIGHT) if row["of"] == "explain")
    return [row for row in rows if row["certain"] and row["truth"] in WORDS]


def read() -> list[Record]:
    """Return all logs that readers read."""
    return [row for _, row in read_objects(SIGHT) if row["of"] == "explain"]


def samples() -> list[int]:
    """Return the samples of logs."""
    return sorted({row["sample"] for row in judged()})


def of_truth(truth: str) -> list[Record]:
    """Return the logs of a truth."""
    return [row for row in judged() if WORDS[row["truth"]] == truth]


def of_verdict(truth: str, verdict: str) -> list[Record]:
    """Return the logs of a truth that got a verdict."""
    return [row for row in of_truth(truth) if verdict_on(row) == verdict]


def verdict_on(row: Record) -> str:
    """Return the verdict on a log at first sight."""
    return WORDS.get(row["first"], UNDECIDED)


def unread() -> list[Record]:
    """Return the undecided logs in a format that `explain` could not read."""
    return [row for row in judged() if row["first"] == "unreadable"]


def saying_nan(truth: str) -> list[Record]:
    """Return the logs of a truth that have the word nan or inf."""
    return [row for row in of_truth(truth) if row["says_nan"]]


def by_sample(rows: Iterable[Record]) -> list[int]:
    """Return how many of some logs are in each sample."""
    counts = Counter(row["sample"] for row in rows)
    return [counts[sample] for sample in samples()]


def undecided(sample: int) -> float:
    """Return the share of undecided logs of a sample."""
    rows = [row for row in judged() if row["sample"] == sample]
    return sum(verdict_on(row) == UNDECIDED for row in rows) / len(rows)


KINDS: dict[str, Kind] = {
    "runs": is_any,
    "unfollowed": is_unfollowed,
    "followed": is_followed,
    "whole": is_consistent,
    "differing": differs,
    "still": is_still,
    "defaults": is_consistent_by_default,
    "longer": refutes_longer,
    "half": partial(refutes, interval="half"),
    "next": partial(refutes, interval="one more"),
    "twice": is_updated_twice,
    "twice.refuted": refutes_configured,
    "longer.log": refutes_longer_as_printed,
    "little": prints_little,
    "dialectless": is_without_dialect,
    "stated": is_consistent_as_stated,
    "looked": is_looked_up,
    "looked.arcface": partial(is_looked_up_in, scaler="arcface", source="default"),
    "looked.fairseq": partial(is_looked_up_in, scaler="fairseq", source="default"),
    "looked.deepspeed": partial(is_looked_up_in, scaler="deepspeed", source="file"),
    "halved": is_halved,
    "many": has_many_growths,
    "bound": has_bound,
    "bound.whole": is_consistent_with_overflows,
    "unshown": is_without_overflows,
    "bound.within": is_within,
    "bound.power": exceeds_longer,
    "interval.log": partial(is_of_source, source="log"),
    "interval.file": partial(is_of_source, source="file"),
    "interval.default": partial(is_of_source, source="default"),
}
HELD_OUT: dict[str, Kind] = {
    "held": is_any,
    "held.followed": is_followed,
    "held.whole": is_consistent,
}
COUNTED = (
    "runs",
    "followed",
    "longer",
    "bound",
    "held",
    "held.followed",
)  # by repositories
SIGHTS: dict[str, Callable[[], list[Record]]] = {
    "logs": judged,
    "problems": partial(of_truth, PROBLEM),
    "healthy": partial(of_truth, HEALTHY),
    "cleared": partial(of_verdict, PROBLEM, HEALTHY),
    "false": partial(of_verdict, HEALTHY, PROBLEM),
    "unread": unread,
    "problems.undecided": partial(of_verdict, PROBLEM, UNDECIDED),
    "healthy.undecided": partial(of_verdict, HEALTHY, UNDECIDED),
    "read": read,
    "nan.problems": partial(saying_nan, PROBLEM),
    "nan.healthy": partial(saying_nan, HEALTHY),
}


def count(run: Result, kind: Kind, *, held_out: bool = False) -> int:
    """Return how many logs are of a kind."""
    return len(logs(run, kind, held_out=held_out))


def count_repositories(run: Result, kind: Kind, *, held_out: bool = False) -> int:
    """Return how many repositories the logs of a kind are of."""
    return len(repositories(logs(run, kind, held_out=held_out)))


def repositories(rows: Iterable[Record]) -> set[str]:
    """Return the repositories of some logs."""
    return {row["repository"] for row in rows}


def clean_repositories(run: Result) -> int:
    """Return how many repositories have only consistent logs among those followed."""
    all_of_them = repositories(logs(run, is_followed))
    return len(all_of_them - repositories(logs(run, differs)))


def total(run: Result, column: str, *, held_out: bool = False) -> int:
    """Return the sum of a count over the followed logs."""
    rows = logs(run, is_followed, held_out=held_out)
    return sum(row[column] for row in rows)


def largest_share(run: Result) -> int:
    """Return how many logs with power are of the repository that has most of them."""
    rows = logs(run, refutes_longer)
    return max(Counter(row["repository"] for row in rows).values())


def training_programs(rows: Iterable[Record]) -> set[str]:
    """Return the training programs that wrote some followed logs."""
    return set(map(training_program, rows))


def count_programs(run: Result, kind: Kind) -> int:
    """Return how many training programs wrote the followed logs of a kind."""
    return len(training_programs(logs(run, kind)))


def largest_program(run: Result) -> int:
    """Return how many logs with power are of the training program that has most of them."""
    rows = logs(run, refutes_longer)
    return max(Counter(map(training_program, rows)).values())


def breaks(run: Result) -> int:
    """Return how many moves of the followed logs the state machine cannot make."""
    return sum(len(row["breaks"]) for row in logs(run, differs))


def revealed(run: Result) -> list[tuple[int, str]]:
    """Return in how many runs a log of each overflow reveals a fault, and its name, in order."""
    counts = [
        (sum(row["shown"]["overflows"] for row in arm), name)
        for name, arm in run.arms.items()
    ]
    return sorted(count for count in counts if count[1] != "no fault")


def most_gpus(run: Result) -> int:
    """Return the largest number of GPUs of a run."""
    return max(int(row["gpus"] or 0) for row in cuda_runs(run))


def count_seen(logs: Callable[[], list[Record]]) -> int:
    """Return how many logs there are of a kind at first sight."""
    return len(logs())


NUMBERS: dict[str, Number | Formula] = {
    "power.least": power(lambda run: revealed(run)[0][0], "d"),
    "power.weakest": power(lambda run: revealed(run)[0][1], "text"),
    "power.others": power(lambda run: revealed(run)[1][0], "d"),
    "cuda.clean.repositories": cuda(clean_repositories, "d"),
    "cuda.gpus": cuda(most_gpus, ",d"),
    "cuda.moves": cuda(partial(total, column="moves"), ",d"),
    "cuda.control": cuda(partial(total, column="control"), ",d"),
    "cuda.longer.largest": cuda(largest_share, "d"),
    "cuda.longer.program": cuda(largest_program, "d"),
    "cuda.longer.programs": cuda(partial(count_programs, kind=refutes_longer), "words"),
    "cuda.followed.programs": cuda(partial(count_programs, kind=is_followed), "words"),
    "cuda.breaks": cuda(breaks, "d"),
    "cuda.held.moves": cuda(partial(total, column="moves", held_out=True), "d"),
    "cuda.held.control": cuda(partial(total, column="control", held_out=True), "d"),
    "sight.undecided": Formula(lambda: undecided(samples()[-1]), "%0"),
    "sight.undecided.least": Formula(lambda: min(map(undecided, samples())), "%0"),
    "sight.undecided.first": Formula(lambda: undecided(samples()[0]), "%0"),
}
for held_out, kinds in ((False, KINDS), (True, HELD_OUT)):
    for name, kind in kinds.items():
        size = partial(count, kind=kind, held_out=held_out)
        NUMBERS[f"cuda.{name}"] = cuda(size, "d")
        if name in COUNTED:
            places = partial(count_repositories, kind=kind, held_out=held_out)
            NUMBERS[f"cuda.{name}.repositories"] = cuda(places, "d")
for name, seen in SIGHTS.items():
    NUMBERS[f"sight.{name}"] = Formula(partial(count_seen, seen), "d")
