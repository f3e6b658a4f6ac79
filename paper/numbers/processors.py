"""The same experiments on seeds not used before."""

from collections.abc import Callable, Sequence

from figures import derived_numbers as q
from figures.claims import CLAIMS, Claim
from figures.results import DATA, Result
from paper import sources
from paper.values import Cell, Formula, Number, Table

SEEDS = "cpu-new-seeds"  # with the common kernels, made after the claims


def above_float32(run: Result, arm: str) -> float:
    """Return by how much an arm raises the mean loss."""
    return run.arm(arm).mean("test_loss") - run.arm("fp32").mean("test_loss")


def ends(values: Sequence[float], digits: int, factor: float = 1.0) -> str:
    """Return the lowest and the highest of some values, in words."""
    low, high = (f"{factor * value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def depth_4(run: Result, column: str, digits: int, factor: float = 1.0) -> str:
    """Return a mean at depth four, for the cumulative rule, the deduplicated one and the probe."""
    means = (
        run.arm(f"{rule} k=4").mean(column) for rule in ("cumulative", "deduplicated", "probe")
    )
    return ", ".join(f"{factor * mean:.{digits}f}" for mean in means)


def gradient_error(run: Result) -> str:
    """Return the ends of the error of a trained gradient, per cent."""
    return ends(q.at_share(run, "real_error", 2), 0, 100)


def table() -> Table:
    """Return results of both sets of seeds, side by side."""
    rows: list[tuple[Cell, ...]] = []

    def add(what: str, stem: str, value: Callable[[Result], float | str], form: str) -> None:
        rows.append((what, Number(stem, value, form), Number(f"{stem}@{SEEDS}", value, form)))

    residual = "residual network at $2^16$, loss above float32's"
    add(residual, "static_sweep", lambda run: above_float32(run, "static 2^16"), ".3f")
    add(
        "the same, dynamic, $G = 50$",
        "static_sweep",
        lambda run: above_float32(run, "dynamic G=50"),
        ".3f",
    )
    add("error of a trained gradient, % of its norm", "gradient_histogram", gradient_error, "text")
    add("late scale, nats lost at most", "staleness", lambda run: max(q.late_losses(run)), ".4f")
    unused = "$k = 4$, bits unused: cumulative, deduplicated, probe"
    add(unused, "staleness", lambda run: depth_4(run, "headroom", 2), "text")
    add(
        "the same, % of steps skipped",
        "staleness",
        lambda run: depth_4(run, "skip_rate", 2, 100),
        "text",
    )
    return Table(("", "seeds of the text", "new seeds"), tuple(rows), "lrr")


def claims() -> list[Claim]:
    """Return the claims of the text."""
    return [CLAIMS[name] for name in sources.named("holds") if name in CLAIMS]


def on_new_seeds() -> list[Claim]:
    """Return the claims of the text that new seeds can test."""
    stems = {path.stem for path in (DATA / SEEDS).glob("*.jsonl")}
    return [claim for claim in claims() if claim.stem in stems]


NUMBERS = {
    "claims": Formula(lambda: len(claims()), "d"),
    "seeds.experiments": Formula(lambda: len(list((DATA / SEEDS).glob("*.jsonl"))), "words"),
    "seeds.tested": Formula(lambda: len(on_new_seeds()), "d"),
}
