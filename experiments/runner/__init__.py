"""Runs an experiment: command line, units, worker processes, journal, provenance.

It knows no experiment by name, and nothing of networks, scalers or clocks. An experiment needs what stands here:
its `Config` extends ours, it raises `UsageError` for settings that it cannot run, and calls `main` as a script.
"""

from experiments.runner.cli import main
from experiments.runner.experiment import DATA, Config, Single, Unit, UsageError
from experiments.runner.settings import BEFORE_THE_END, COUNT, FROM_0, SHARE, like, one_of

__all__ = [
    "BEFORE_THE_END", "COUNT", "DATA", "FROM_0", "SHARE", "Config", "Single", "Unit", "UsageError", "like", "main",
    "one_of",
]  # fmt: skip
