"""The numbers of the text: name -> a function of a data file, and how its value is printed.

A new number goes into the module of its experiment, a new module into `PARTS`. The text shows it by
``#num("name")``. A sentence that the data must support is a claim in `figures/claims.py`, which
the text marks with ``#holds("name")``. Means are over seeds.
"""

from paper.numbers import (
    artefact,
    conformance,
    gradients,
    loops,
    runs,
    scalers,
    stated,
    theory,
    training,
)
from paper.values import Formula, Number

PARTS = (
    scalers,
    conformance,
    loops,
    runs,
    theory,
    gradients,
    training,
    stated,
    artefact,
)
NUMBERS: dict[str, Number | Formula] = {}
for part in PARTS:
    NUMBERS.update(part.NUMBERS)
