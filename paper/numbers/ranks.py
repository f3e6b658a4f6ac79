"""Two ranks under torch's sharded scaler."""

from functools import partial
from math import log2

from figures.derived_numbers import parted_runs, rank_cells, rank_wrong
from figures.results import Result
from paper.values import Number

cells = partial(Number, "ranks_cells")
training = partial(Number, "ranks_training")


def of_cut(cut: str) -> Number:
    """Return the number of cells with this sharding."""
    return cells(
        lambda run: sum(cell["cut"] == cut for cell in rank_cells(run, "torch")), "d"
    )


def wrong_of_cut(cut: str) -> Number:
    """Return in how many of these torch's scaler gives wrong results."""
    return cells(
        lambda run: sum(cell["cut"] == cut for cell in rank_wrong(run, "torch")), "d"
    )


def raised(run: Result) -> int:
    """Return in how many cells the step raises."""
    return sum(
        cell["outcome"].startswith("raised") for cell in rank_wrong(run, "torch")
    )


def bits_apart(run: Result) -> list[float]:
    """Return by how many bits the scales are apart at the end, for runs in which they diverge."""
    ends = [
        (a["scale_changes"][-1][1], b["scale_changes"][-1][1])
        for a, b in parted_runs(run)
    ]
    return [abs(log2(a / b)) for a, b in ends]


NUMBERS: dict[str, Number] = {
    "ranks.FSDP1": of_cut("FSDP1"),
    "ranks.FSDP1.wrong": wrong_of_cut("FSDP1"),
    "rt.interval": training(lambda run: run.config["growth_interval"], "words"),
    "rt.start": training(lambda run: 2.0 ** run.config["init_log2"], "2^"),
    "rt.apart.min": training(lambda run: min(bits_apart(run)), ">=d"),
    "rt.apart.max": training(lambda run: max(bits_apart(run)), "<=d"),
}
