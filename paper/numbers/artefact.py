"""What each experiment is for, how long it took, and the processors that made the data."""

from collections.abc import Callable

from ampsim.core.json_lines import Record
from paper import sources
from paper.values import Formula, Number, Table

# what each experiment is for, and how a rerun is compared
EXPERIMENTS = (
    ("theory_real", "@sec-real", "kernels"),
    ("threads", "@sec-async", "result"),
    ("staleness", "@sec-depth", "exact; kernels"),
    ("conformance", "@sec-conformance", "exact"),
    ("exponent_heatmap", "@sec-training", "kernels"),
    ("sigmoid_underflow", "@sec-training", "kernels"),
    ("gpt_fp16", "@sec-training", "kernels"),
    ("rules_trained", "@sec-interval", "kernels"),
    ("overflow_storm", "@sec-crash", "kernels"),
    ("scale_crash", "@sec-crash", "kernels"),
    ("recorded_thresholds", "@sec-interval", "kernels"),
    ("policy_benchmark", "@sec-interval", "exact"),
    ("resnet_fp16", "@sec-training", "kernels"),
    ("static_sweep", "@sec-training", "kernels"),
    ("async_depth", "@sec-depth", "kernels"),
    ("gradient_histogram", "@sec-training", "kernels"),
    ("emulated_cuda", "@sec-limits", "kernels"),
    ("ranks_cells", "@sec-ranks", "exact"),
    ("ranks_training", "@sec-ranks", "kernels"),
    ("loops", "@sec-loops", "exact; clock"),
    ("census", "@sec-loops", "exact"),
    ("cuda_runs", "@sec-runs", "exact"),
)


def table() -> Table:
    """Return a row for each experiment."""
    rows = []
    for stem, where, compare in EXPERIMENTS:
        seconds = Number(stem, lambda run: run.provenance["unit_seconds"], ",.0f")
        rows.append((f"`{stem}`", where, seconds, compare))
    return Table(("experiment", "for", "seconds", "compare"), tuple(rows), "llrl")


def origins() -> list[Record]:
    """Return the headers of the experiments' data files."""
    return [*sources.origins(stem for stem, _, _ in EXPERIMENTS).values()]


def listed(read: Callable[[Record], object]) -> Formula:
    """Return the value of the headers; if they differ, each different value."""

    def values() -> str:
        return " and ".join(sorted({str(read(origin)) for origin in origins()}))

    return Formula(values, "text")


def minutes() -> float:
    """Return how long all experiments took."""
    return float(sum(origin["unit_seconds"] for origin in origins())) / 60


NUMBERS: dict[str, Number | Formula] = {
    "artefact.minutes": Formula(minutes, ".0f"),
    "artefact.processors": listed(lambda origin: origin["cpu"]),
    "artefact.threads": listed(lambda origin: origin["threads"]),
    "artefact.python": listed(lambda origin: origin["versions"]["python"]),
    "artefact.torch": listed(lambda origin: origin["versions"]["torch"]),
}
