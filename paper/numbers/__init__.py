"""Every number in the text: name -> a function of what a data file says, and how the value is printed.

Means are over seeds. A new number goes into the module of its experiment, a new module into `PARTS`. The text shows a
number by ``#num("name")``. A sentence that the data must bear out is a claim in `figures/claims.py`, which the text
marks with ``#holds("name")``.
"""

from paper.numbers import artefact, gradients, judged, processors, scalers, theory, training
from paper.values import Formula, Number

PARTS = (scalers, judged, theory, gradients, training, processors, artefact)
NUMBERS: dict[str, Number | Formula] = {name: number for part in PARTS for name, number in part.NUMBERS.items()}
