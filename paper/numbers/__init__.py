"""Every number in the text: name -> where it stands in which data file, and how it is printed.

`paper.paths` says how a path is read. Means are over seeds. A claim is a sentence in words that the data must bear
out; the text marks it with ``#holds("name")``. A new number goes into the module of its experiment, a new module
into `PARTS`.
"""

from paper.ledger import Claim, Number
from paper.numbers import costs, gradients, scalers, theory, training

PARTS = (scalers, theory, gradients, training, costs)
CLAIMS: dict[str, Claim] = {name: claim for part in PARTS for name, claim in part.CLAIMS.items()}
NUMBERS: dict[str, Number] = {name: number for part in PARTS for name, number in part.NUMBERS.items()}
NUMBERS["claims"] = Number("formulas", str(len(CLAIMS)), "d")
FIGURES = (
    "state_machine", "threads", "staleness", "theory_real", "adversary", "exponent_heatmap", "sigmoid_underflow",
    "gpt_fp16", "overflow_storm", "overhead",
)  # fmt: skip
