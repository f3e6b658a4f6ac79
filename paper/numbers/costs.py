"""The largest model that was run: only to be measured, not trained to an end."""

from paper.ledger import Number

NUMBERS: dict[str, Number] = {
    "run.largest": Number("probe_overhead", lambda run: max(row["elements"] for row in run.records[0]["rows"]), ">=,d"),
}
