"""Public logs under the state machine, and `ampsim explain` on runs with seeded faults."""

from collections.abc import Iterable
from functools import partial

from ampsim.core.json_lines import Record
from figures.derived_numbers import cuda_runs, followed
from figures.results import Result
from paper.values import Number

cuda = partial(Number, "cuda_runs")
explain = partial(Number, "explain_faults")


def whole(rows: Iterable[Record]) -> int:
    """Return how many runs the state machine reproduces."""
    return sum(not row["breaks"] for row in rows)


def total(rows: Iterable[Record], name: str) -> int:
    """Return the sum of a count over runs."""
    return sum(row[name] for row in rows)


def most_gpus(run: Result) -> int:
    """Return the largest number of GPUs of a run."""
    return max(int(row["gpus"] or 0) for row in cuda_runs(run))


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
    "cuda.runs": cuda(lambda run: len(cuda_runs(run)), "d"),
    "cuda.repositories": cuda(lambda run: len({row["repository"] for row in cuda_runs(run)}), "d"),
    "cuda.gpus": cuda(most_gpus, ",d"),
    "cuda.followed": cuda(lambda run: len(followed(run)), "d"),
    "cuda.whole": cuda(lambda run: whole(followed(run)), "d"),
    "cuda.moves": cuda(lambda run: total(followed(run), "moves"), ",d"),
    "cuda.breaks": cuda(lambda run: sum(len(row["breaks"]) for row in followed(run)), "d"),
    "cuda.control": cuda(lambda run: total(followed(run), "control"), ",d"),
    "cuda.held.followed": cuda(lambda run: len(followed(run, held_out=True)), "words"),
    "cuda.held.whole": cuda(lambda run: whole(followed(run, held_out=True)), "words"),
    "cuda.held.moves": cuda(lambda run: total(followed(run, held_out=True), "moves"), "d"),
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
