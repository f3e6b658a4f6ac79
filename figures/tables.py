"""Results that are words or a few numbers: tables of the gallery and of the paper."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from figures.derived_numbers import rank_cells
from figures.results import Result

WAYS = {"unscale_": "with `unscale_`", "step": "without"}
OUTCOMES = {  # of two ranks -> words
    "right": (),
    "parted": ("diverge",),
    "infinite": ("inf",),
    "raised": ("raises",),
    "raised infinite": ("raises", "inf"),
}


@dataclass(frozen=True)
class Table:
    """A caption, the heads, and the rows, all text."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """Return the table and its caption for the gallery."""
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        return "\n".join(
            [f"{self.caption}\n", *(f"| {' | '.join(cells)} |" for cells in lines), ""]
        )


def loops(run: Result) -> Table:
    """Return how many checks the loop of each framework passes, and which checks fail."""
    rows = []
    for record in run.records:
        if "checks" in record:
            ran = {
                k: v for k, v in record["checks"].items() if v["outcome"] != "not asked"
            }
            failed = {k: v for k, v in ran.items() if v["outcome"] != "holds"}
            passed = f"{len(ran) - len(failed)} of {len(ran)}"
            words = "; ".join(
                failure(check, verdict) for check, verdict in failed.items()
            )
            rows.append((record["arm"], record["version"] or "", passed, words))
    failing = sum(bool(words) for *_, words in rows)
    caption = (
        f"{failing} of {len(rows)} training loops of frameworks fail a check. Each loop trains a tiny model in "
        "float32. equinox and flax nnx have no scaler; their loops use ampsim's. Reported: a public report of the "
        "failure exists."
    )
    return Table(caption, ("loop", "version", "passed", "failed"), tuple(rows))


def failure(check: str, verdict: Mapping[str, Any]) -> str:
    """Return the name of a failed check, and whether the failure was reported."""
    reported = "https://" in (verdict["known"] or "")
    return (
        f"{check.replace('_', ' ')} ({'reported' if reported else 'no report found'})"
    )


def ranks_cells(run: Result) -> Table:
    """Return in words what two ranks do, by sharding and fused optimizer."""
    caption = (
        "Only fused optimizers fail on two ranks with torch's `ShardedGradScaler`, with and without a call of "
        "`unscale_`. A cell is the worst that happens if gradients overflow on neither rank, on one, or on both. "
        "Diverge: the ranks' scales differ. Inf: parameters become infinite. Raises: the step raises after it wrote "
        "parameters. Dash: the optimizer does not step such parameters even without a scaler."
    )
    cells = rank_cells(run, "torch")
    fused = dict.fromkeys(
        (c["optimizer"], c["way"]) for c in cells if c["loop"] == "fused"
    )
    heads = [f"fused {optimizer}, {WAYS[way]}" for optimizer, way in fused]
    rows = []
    for cut in run.config["cuts"]:
        mine = [cell for cell in cells if cell["cut"] == cut]
        words = [
            outcome(
                [
                    c
                    for c in mine
                    if (c["optimizer"], c["way"], c["loop"]) == (*column, "fused")
                ]
            )
            for column in fused
        ]
        others = outcome([cell for cell in mine if cell["loop"] != "fused"])
        rows.append((cut, *words, others))
    return Table(caption, ("sharding", *heads, "not fused"), tuple(rows))


def log_power(run: Result) -> Table:
    """Return in how many runs a log shows the fault of a scaler, by what it prints."""
    caption = (
        "A log that prints each overflow shows every seeded fault of a loss scaler in at least half of the runs. A "
        "cell counts the runs in which the printed scales alone contradict the scaler without the fault. The log "
        "prints the scale every so many steps, or every hundred steps and at each overflow. Counts: theorem T1 alone, "
        "on the number of overflows."
    )
    forms = run.records[0]["shown"]
    rows = []
    for arm in dict.fromkeys(record["arm"] for record in run.records):
        mine = [record for record in run.records if record["arm"] == arm]
        total = sum(record["runs"] for record in mine)
        shown = (sum(record["shown"][form] for record in mine) for form in forms)
        rows.append((arm, *(f"{count} of {total}" for count in shown)))
    heads = ("each overflow" if form == "overflows" else form for form in forms)
    return Table(caption, ("fault", *heads), tuple(rows))


def outcome(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return all that goes wrong in some of these cells."""
    wrong = dict.fromkeys(word for cell in cells for word in OUTCOMES[cell["outcome"]])
    if not cells:
        return "–"
    return ", ".join(wrong) or "ok"


TABLES: dict[str, Callable[[Result], Table]] = {
    "log_power": log_power,
    "loops": loops,
    "ranks_cells": ranks_cells,
}
