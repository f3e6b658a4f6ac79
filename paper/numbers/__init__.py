"""Every number in the text: name -> a function of what a data file says, and how the value is printed.

Means are over seeds. A new number goes into the module of its experiment, a new module into `PARTS`. A sentence in
words that the data must bear out is a claim in `figures/claims.py`, which the text marks with ``#holds("name")``.
"""

from paper.ledger import Formula, Number
from paper.numbers import costs, gradients, processors, scalers, theory, training

PARTS = (scalers, theory, gradients, training, costs, processors)
NUMBERS: dict[str, Number | Formula] = {name: number for part in PARTS for name, number in part.NUMBERS.items()}
FIGURES = (
    "exponent_heatmap", "state_machine", "threads", "staleness", "theory_real", "adversary", "ranks_cells", "gpt_fp16",
    "overflow_storm", "atlas", "sigmoid_underflow", "static_sweep", "crash_signals", "public_runs",
    "rules_trained", "overhead",
)  # fmt: skip
