"""Public logs under the state machine."""

from collections.abc import Iterable
from functools import partial

from ampsim.core.json_lines import Record
from figures.derived_numbers import cuda_runs, followed
from figures.results import Result
from paper.values import Number

cuda = partial(Number, "cuda_runs")


def whole(rows: Iterable[Record]) -> int:
    """Return how many runs the state machine reproduces."""
    return sum(not row["breaks"] for row in rows)


def total(rows: Iterable[Record], name: str) -> int:
    """Return the sum of a count over runs."""
    return sum(row[name] for row in rows)


def most_gpus(run: Result) -> int:
    """Return the largest number of GPUs of a run."""
    return max(int(row["gpus"] or 0) for row in cuda_runs(run))


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
    "cuda.held.repositories": cuda(
        lambda run: len({row["repository"] for row in followed(run, held_out=True)}), "words"
    ),
    "cuda.held.control": cuda(lambda run: total(followed(run, held_out=True), "control"), "d"),
    "cuda.held.moves": cuda(lambda run: total(followed(run, held_out=True), "moves"), "d"),
}
