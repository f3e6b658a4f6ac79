"""The checks of loops, one per file. Importing this package registers them in `CHECKS`.

A check is a function of a loop's maker and of batches that returns the failure, or None.
"""

from ampsim.testing.loop.check import CHECKS

# In the order of a report.
# isort: off
from ampsim.testing.loop.checks import (
    scale,
    skipped,
    resume,
    splitting,
    learning,
)

__all__ = ["CHECKS", "learning", "resume", "scale", "skipped", "splitting"]
