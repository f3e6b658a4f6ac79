"""Every number in the text: name -> a function of what a data file says, and how the value is printed.

Means are over seeds. A new number goes into the module of its experiment, a new module into `PARTS`. A sentence in
words that the data must bear out is a claim in `figures/claims.py`, which the text marks with ``#holds("name")``.
"""

from paper.ledger import Formula, Number
from paper.numbers import gradients, judged, processors, scalers, theory, training

PARTS = (scalers, judged, theory, gradients, training, processors)
NUMBERS: dict[str, Number | Formula] = {name: number for part in PARTS for name, number in part.NUMBERS.items()}
FIGURES = (
    "exponent_heatmap", "theory_real", "loops", "staleness", "ranks_cells", "ranks_training", "overflow_storm",
    "whole_logs", "atlas", "rules_trained",
)  # fmt: skip
